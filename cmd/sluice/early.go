package main

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// earlyPause is the least time between two walks through conntrack's table for a family, each
// of which takes the kernel some 10 ms of one core where it has 262,144 buckets, however few
// entries are in them. A client sends its first packet again after a second (RFC 6298), and
// later. After an error, as when the process has no descriptor left, the pause grows.
const (
	earlyPause    = 250 * time.Millisecond
	earlyPauseMax = 4 * time.Second
)

// earlyTries is for how long a search that fails is tried again: a client of Linux asks for
// 127 s (tcp_syn_retries in tcp(7)), and conntrack keeps what is not answered for 120 s. A
// kernel without nf_conntrack_netlink is not asked for ever.
const earlyTries = 2 * time.Minute

// early has clients forgotten who have asked a Service of TCP or SCTP before it was there.
// netfilter looks at rules only for the first packet of a connection, and one that is sent
// again is none: conntrack has an entry that leads to nowhere, and keeps it for as long as
// the client goes on asking. Without it the next packet finds the Service. This is no part of
// bringing a change into force, which does not wait for it. The zero early does nothing.
type early struct {
	ipv4, ipv6 earlyFamily
}

type earlyFamily struct {
	deleted atomic.Uint64
	observe func(time.Duration) // told how long a search took; may be nil
	wake    chan struct{}       // one token: somebody is in begun

	mu    sync.Mutex
	begun []begun
}

// begun is a frontend that is in force, and until when it is of use to forget who asked before.
type begun struct {
	lb.Frontend
	until time.Time
}

// forgetEarly has them forgotten until ctx ends, in every mode that steers.
func (p *program) forgetEarly(ctx context.Context) {
	if p.cfg.DataPath.Mode == config.ModeWinUserspace {
		return
	}
	p.agent.Begun = p.early.add
	for _, ipv6 := range []bool{false, true} {
		f := p.early.of(ipv6)
		f.wake = make(chan struct{}, 1)
		p.background.Go(func() { f.run(ctx, ipv6, p.log) })
	}
}

// withStats returns what t counts, with the entries that were deleted here.
func (e *early) withStats(t *redirect.IPTables) func() redirect.Stats {
	return func() redirect.Stats {
		s := t.Stats()
		s.FlowsDeleted += e.of(t.IPv6).deleted.Load()
		return s
	}
}

// add is agent.Agent.Begun.
func (e *early) add(frontends []lb.Frontend) {
	until := time.Now().Add(earlyTries)
	for _, ipv6 := range []bool{false, true} {
		var list []begun
		for _, at := range frontends {
			if at.Addr.Addr().Is6() == ipv6 {
				list = append(list, begun{at, until})
			}
		}
		e.of(ipv6).add(list)
	}
}

func (e *early) of(ipv6 bool) *earlyFamily {
	if ipv6 {
		return &e.ipv6
	}
	return &e.ipv4
}

func (f *earlyFamily) add(list []begun) {
	if len(list) == 0 {
		return
	}
	f.mu.Lock()
	f.begun = append(f.begun, list...)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default: // a token lies there already
	}
}

func (f *earlyFamily) take() []begun {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.begun
	f.begun = nil
	return list
}

func (f *earlyFamily) run(ctx context.Context, ipv6 bool, log *zap.Logger) {
	pause, told := earlyPause, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		list := f.take()
		err := f.forget(ipv6, list)
		switch {
		case err == nil:
			pause, told = earlyPause, false
		case !told:
			told = true
			log.Warn("clients who have asked for a Service too early may wait until they give up, unless trying again helps", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if err != nil {
			pause = min(2*pause, earlyPauseMax)
			now := time.Now()
			f.add(slices.DeleteFunc(list, func(b begun) bool { return !now.Before(b.until) }))
		}
	}
}

// forget deletes the entries of frontends of the family.
func (f *earlyFamily) forget(ipv6 bool, list []begun) error {
	var tcp, sctp []netip.AddrPort
	for _, at := range list {
		if at.Protocol == lb.SCTP {
			sctp = append(sctp, at.Addr)
		} else {
			tcp = append(tcp, at.Addr)
		}
	}
	start := time.Now()
	n, err := redirect.DeleteUnanswered(ipv6, tcp, sctp)
	f.deleted.Add(n)
	if f.observe != nil {
		f.observe(time.Since(start))
	}
	return err
}
