package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/bench/stats"
)

// turnsWorkloads compare path queue with DNAT, both of which run, by turns: rounds cannot tell whether a bound of a few
// per cent holds on a machine whose pace changes within a second.
func turnsWorkloads() []workload {
	return []workload{
		{name: "rr-64-turns", alone: true, about: "TCP, requests on 64 connections that stay, of path queue and of " +
			"DNAT, which both run, by turns of milliseconds", run: requestsByTurns},
		{name: "short-turns", alone: true, about: "TCP, 32 clients with a connection for each request, of path queue " +
			"and of DNAT, which both run, by turns of a quarter of a second", run: connectionsByTurns},
	}
}

func requestsByTurns(ctx context.Context, l *lab, _ *running, d time.Duration) ([]figure, error) {
	if err := l.cores.comeBack(); err != nil { // as the other labs choose among all
		return nil, err
	}
	w := pairedWorkload{conns: 64, clock: true, lasts: d}
	twins := w.twins([]system{systemOf(report.DNAT), systemOf(report.Queue)})
	if err := errors.Join(w.start(ctx, l.sluice, twins), l.cores.leave()); err != nil {
		return nil, err
	}
	dnat, queue := twins[0].took[0], twins[1].took[0]
	return []figure{{report.ByTurns, "x", dnat / queue}, {report.Queue, "us/request", queue},
		{report.DNAT, "us/request", dnat}}, nil
}

const (
	// turnOfClients is how long the clients of one system run while the other's are stopped. It is longer than what the
	// proxy takes to see that its cores have become busy.
	turnOfClients = 250 * time.Millisecond

	// leastTurns is how many each system has at least.
	leastTurns = 6
)

// side is a system whose clients run by turns, with what each turn gave.
type side struct {
	*twin
	clients *load.Client
	rate    []float64 // connections/s
	machine []float64 // us of all cores for a connection
}

// connectionsByTurns has one client process for each system, which is stopped (SIGSTOP) where it is the other's turn.
func connectionsByTurns(ctx context.Context, l *lab, _ *running, d time.Duration) (figures []figure, err error) {
	if err := l.cores.comeBack(); err != nil { // as the other labs choose among all
		return nil, err
	}
	sides := []*side{{twin: &twin{system: systemOf(report.DNAT)}}, {twin: &twin{system: systemOf(report.Queue)}}}
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.leave())
		}
		err = errors.Join(err, l.cores.leave())
	}()
	for _, i := range rand.Perm(len(sides)) {
		if err := sides[i].begin(ctx, l.sluice, pairedWorkload{}); err != nil {
			return nil, fmt.Errorf("start %s: %w", sides[i].system.name, err)
		}
	}
	if err := sides[0].cores.leave(); err != nil {
		return nil, err
	}
	turns := max(leastTurns, int(d/(turnOfClients*time.Duration(len(sides)))))
	for _, s := range sides {
		if err := s.start(ctx); err != nil {
			return nil, fmt.Errorf("load %s: %w", s.system.name, err)
		}
	}
	for range turns {
		for _, i := range rand.Perm(len(sides)) {
			if err := sides[i].run(); err != nil {
				return nil, fmt.Errorf("load %s: %w", sides[i].system.name, err)
			}
		}
	}
	failed := uint64(0)
	for _, s := range sides {
		s.clients.End()
		s.clients.Signal(syscall.SIGCONT)
		res, err := s.clients.Result()
		if err != nil {
			return nil, err
		}
		failed += res.Errors
		l.remarkErrors(res)
	}
	dnat, queue := sides[0], sides[1]
	return []figure{{report.ByTurns, "x", stats.Median(stats.Ratios(queue.rate, dnat.rate))},
		{report.MachineByTurns, "x", stats.Median(stats.Ratios(queue.machine, dnat.machine))},
		{report.Queue, "us/connection", stats.Median(queue.machine)},
		{report.DNAT, "us/connection", stats.Median(dnat.machine)},
		{report.Errors, "", float64(failed)}}, nil
}

// start starts the clients of a side, and stops them when they are warm.
func (s *side) start(ctx context.Context) (err error) {
	c := shortLoad
	c.Addrs, c.Warm = s.addrs(s.service(sizedService)), warm
	if s.clients, err = s.lab.ask(ctx, c); err == nil {
		s.clients.Signal(syscall.SIGSTOP)
	}
	return err
}

func (s *side) run() error {
	began, opened, before, err := s.now()
	if err != nil {
		return err
	}
	s.clients.Signal(syscall.SIGCONT)
	time.Sleep(turnOfClients) // it is the length of what is measured
	s.clients.Signal(syscall.SIGSTOP)
	ended, until, after, err := s.now()
	if err != nil {
		return err
	}
	n := float64(until - opened)
	s.rate = append(s.rate, n/ended.Sub(began).Seconds())
	s.machine = append(s.machine, after.minus(before).machineTime().Seconds()*micro/n)
	return nil
}

// now returns the time, how many connections the host of the clients has opened, and what was used.
func (s *side) now() (at time.Time, opened int64, u usage, err error) {
	if opened, err = s.tb.Client.Counter("Tcp", "ActiveOpens"); err != nil { // of RFC 4022
		return at, 0, u, err
	}
	u, err = measureUsage(s.pid(), s.cores.proxy)
	return time.Now(), opened, u, err
}

func (s *side) leave() error {
	if s.clients != nil {
		s.clients.Stop(syscall.SIGKILL)
	}
	return s.end()
}
