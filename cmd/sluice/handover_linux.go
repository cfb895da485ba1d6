package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cloudflare/tableflip"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/handover"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/status"
)

const (
	// upgradeTimeout is how long a successor may take until it serves. It reads its
	// Services before it takes over, from an API server that may be slow.
	upgradeTimeout = 2 * time.Minute

	// takeTimeout bounds the handover itself on the side that takes; the other side has
	// bounds of its own, which are shorter.
	takeTimeout = time.Minute

	// channelFile is the name under which a child inherits its channel.
	channelFile = "handover"
)

// succession is how this process comes to what it serves, and passes it on.
type succession struct {
	p         *program
	upgrader  *tableflip.Upgrader
	from      *handover.Channel // to the parent process; nil: there is none
	found     bool              // there is a process to take over from
	listeners handover.Listeners
	metrics   handover.Collector
	pidTmp    string      // a PID file that is not in force yet
	ready     atomic.Bool // this process serves and may be upgraded

	giving sync.Mutex // held while everything is being handed over, or taken down
	socket *handover.Socket
}

// newSuccession is called once, at the start of the process.
func newSuccession() (*succession, error) {
	upgrader, err := tableflip.New(tableflip.Options{UpgradeTimeout: upgradeTimeout})
	if err != nil {
		return nil, fmt.Errorf("prepare for upgrades: %w", err)
	}
	s := &succession{upgrader: upgrader}
	file, err := upgrader.File(channelFile)
	if err != nil {
		return nil, fmt.Errorf("find the channel of the parent process: %w", err)
	}
	if file != nil {
		if s.from, err = handover.FromParent(file); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// fail tells the running process why this one does not take over.
func (s *succession) fail(err error) {
	if s.from != nil {
		s.from.Fail(err)
		s.from = nil
	}
	if s.pidTmp != "" {
		_ = os.Remove(s.pidTmp)
	}
}

// find looks for a running process to take over from.
func (s *succession) find(p *program) (err error) {
	s.p = p
	s.found = s.from != nil
	if !s.found && p.cfg.Process.HandoverSocket != "" {
		// Only a look: until we know what to serve there may be long to wait.
		ch, err := handover.Dial(p.cfg.Process.HandoverSocket)
		if err != nil {
			return err
		}
		if s.found = ch != nil; s.found {
			ch.Close()
		}
	}
	if s.found {
		p.log.Info("there is a running process to take over from")
		s.listeners.Await()
	}
	status.Open = s.listeners.Listen
	return s.writePID()
}

// taking reports whether there is a running process to take over from.
func (s *succession) taking() bool { return s.found }

// collector is for the metrics.
func (s *succession) collector() prometheus.Collector { return &s.metrics }

// take takes over from the running process. False: there is none, or it has ended.
func (s *succession) take(ctx context.Context) (taken bool, err error) {
	if !s.found {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	ch := s.from
	s.from = nil // from here on the other side is told by what we call
	if ch == nil {
		if ch, err = handover.Dial(s.p.cfg.Process.HandoverSocket); err != nil {
			return false, err
		}
	}
	err = handover.ErrGone
	var t *handover.Taker
	if ch != nil {
		t, err = handover.Begin(ctx, ch, version)
	}
	if err == nil {
		s.p.agent.LB.Seed = t.Seed()
		t.Frozen = s.metrics.Frozen.Observe
		var r handover.Report
		var problems error
		if r, problems, err = t.Finish(ctx, s.estate()); err == nil {
			s.took(r, problems)
			return true, nil
		}
	}
	if errors.Is(err, handover.ErrGone) {
		s.p.log.Warn("the running process has ended meanwhile; starting as if there had been none", zap.Error(err))
		s.listeners.Open()
		return false, nil
	}
	return false, err
}

func (s *succession) took(r handover.Report, problems error) {
	s.metrics.Taken.Store(1)
	s.p.log.Info("took over from the running process", zap.Int("pid", r.Peer), zap.String("version", r.From),
		zap.Int("tcp connections", r.Conns), zap.Int("copied beforehand", r.Copied), zap.Int("udp flows", r.Flows), zap.Int("sctp associations", r.Assocs), zap.Duration("took", r.Took),
		zap.Duration("99 of 100 stood still for at most", s.metrics.Frozen.Quantile(0.99)), zap.Duration("all", r.Frozen))
	if problems != nil {
		s.p.log.Error("not everything could be taken over", zap.Error(problems))
	}
}

func (s *succession) estate() *handover.Estate {
	p := s.p
	return &handover.Estate{Program: version, Loops: p.loops, LB: p.agent.LB, TCP: p.tcp, UDP: p.udp, SCTP: p.sctp, Agent: p.agent, Listeners: &s.listeners}
}

// serve makes this process the one that is to be taken over from. ctx ends it.
func (s *succession) serve(ctx context.Context, background *sync.WaitGroup) {
	s.listeners.Open()
	s.ready.Store(true)
	if path := s.p.cfg.Process.HandoverSocket; path != "" {
		var err error
		if s.socket, err = handover.Listen(path); err != nil {
			// What was taken over is served anyway.
			s.p.log.Error("this process serves, but cannot be asked to hand over: the next one will not find it", zap.Error(err))
		} else {
			background.Go(func() { s.answer(ctx) })
		}
	}
	if s.pidTmp != "" {
		if err := os.Rename(s.pidTmp, s.p.cfg.Process.PIDFile); err != nil {
			s.p.log.Error("the PID file is not written", zap.Error(err))
		}
		s.pidTmp = ""
	}
	if err := s.upgrader.Ready(); err != nil {
		s.p.log.Debug("the parent process has ended already", zap.Error(err)) // as it does once we have everything
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR2)
	background.Go(func() {
		defer signal.Stop(signals)
		for {
			select {
			case <-ctx.Done():
				return
			case sig := <-signals:
				_ = s.upgrade(sig.String(), func(int) {}) // it says in the log how it went
			}
		}
	})
}

// writePID writes the PID file aside, so that a full disk is noticed before anything
// is taken over.
func (s *succession) writePID() error {
	path := s.p.cfg.Process.PIDFile
	if path == "" {
		return nil
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(tmp, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("--pid-file: %w: give a file in a folder that Sluice may write to", err)
	}
	s.pidTmp = tmp
	return nil
}

// close ends what serve has begun, before everything is taken down. A handover that is
// under way comes first; if it succeeds this does not return.
func (s *succession) close() {
	s.giving.Lock() // for good
	if s.socket != nil {
		s.socket.Remove()
	}
	if path := s.p.cfg.Process.PIDFile; path != "" {
		if b, err := os.ReadFile(path); err == nil && string(b) == strconv.Itoa(os.Getpid()) {
			_ = os.Remove(path)
		}
	}
}

// answer serves those that have an errand.
func (s *succession) answer(ctx context.Context) {
	for {
		ch, hello, err := s.socket.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.p.log.Warn("somebody at the handover socket was sent away", zap.Error(err))
			if errors.Is(err, handover.ErrBroken) {
				return
			}
		case hello.Upgrade:
			if err := s.upgrade("a request", ch.Upgraded); err != nil {
				ch.Fail(err)
			}
		default:
			s.give(ch, hello)
		}
	}
}

// give hands over to a process that is not our child, and ends this one.
func (s *succession) give(ch *handover.Channel, hello handover.Hello) {
	defer ch.Close()
	if !s.giving.TryLock() {
		ch.Fail(errors.New("the running process is handing over already, or stopping"))
		return
	}
	defer s.giving.Unlock()
	r, err := handover.Give(context.Background(), ch, hello, s.estate())
	if err != nil {
		s.metrics.Failed.Add(1)
		s.p.log.Error("not handed over; this process serves on, with every connection", zap.Error(err))
		return
	}
	s.leave(r)
}

// upgrade starts the program anew and hands over to it. On success done is told who
// serves now, and this process ends; otherwise it returns why not.
func (s *succession) upgrade(why string, done func(pid int)) error {
	if !s.ready.Load() {
		return errors.New("the running process does not serve yet")
	}
	log := s.p.log.With(zap.String("asked for by", why))
	err := s.tryUpgrade(done)
	s.metrics.Failed.Add(1)
	log.Error("not upgraded; this process serves on, with every connection", zap.Error(err))
	return err
}

func (s *succession) tryUpgrade(done func(pid int)) error {
	if os.Getpid() == 1 {
		return errors.New("process 1 cannot be replaced by its child, since a container ends with it: " +
			"start another container with the same --handover-socket, which takes over")
	}
	if !s.giving.TryLock() {
		return errors.New("the running process is handing over already, or stopping")
	}
	defer s.giving.Unlock()
	ch, file, err := handover.Pair()
	if err != nil {
		return err
	}
	defer ch.Close()
	err = s.upgrader.AddFile(channelFile, file)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("pass a channel to the successor: %w", err)
	}
	type result struct {
		handover.Report
		err error
	}
	child, ended := context.WithCancel(context.Background())
	defer ended()
	given := make(chan result, 1)
	started := make(chan error, 1)
	if err := s.parentGone(); err != nil {
		return err
	}
	go func() {
		var r result
		var hello handover.Hello
		if hello, r.err = ch.Greet(child); r.err == nil {
			r.Report, r.err = handover.Give(child, ch, hello, s.estate())
		}
		given <- r
	}()
	go func() { started <- s.startSuccessor() }()
	s.p.log.Info("starting a successor", zap.String("program", os.Args[0]))
	var r result
	select {
	case r = <-given:
		if r.err != nil {
			err = <-started // it ends by itself, since it has got nothing
		}
	case err = <-started:
		ended()
		r = <-given
	}
	if r.err == nil {
		done(r.Peer)
		s.leave(r.Report)
	}
	if _, said := errors.AsType[*handover.Failure](r.err); said || err == nil {
		return r.err
	}
	return fmt.Errorf("start a successor: %w", errors.Join(err, r.err))
}

// startSuccessor has tableflip start a process and waits until that is ready, or has ended.
func (s *succession) startSuccessor() error {
	// tableflip v1.2.3 tells of the parent's end, which parentGone has waited for, a
	// moment before it takes note of it, and has no name for the refusal.
	const early = "parent hasn't exited"
	err := s.upgrader.Upgrade()
	for tries := 0; tries < 1000 && err != nil && err.Error() == early; tries++ {
		runtime.Gosched()
		err = s.upgrader.Upgrade()
	}
	return err
}

// parentGone waits for the end of the process that this one took over from, which comes
// at once.
func (s *succession) parentGone() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.upgrader.WaitForParent(ctx); err != nil {
		return fmt.Errorf("wait for the end of the parent process: %w", err)
	}
	return nil
}

// leave ends this process, which has nothing any more: nothing is closed or undone,
// since all of it is another's now.
func (s *succession) leave(r handover.Report) {
	s.p.log.Info("handed over; this process ends", zap.Int("to", r.Peer), zap.Int("tcp connections", r.Conns),
		zap.Int("copied beforehand", r.Copied), zap.Int("udp flows", r.Flows), zap.Int("sctp associations", r.Assocs), zap.Duration("took", r.Took))
	_ = s.p.log.Sync()
	if os.Getpid() == 1 {
		// A container that ends is started again, by the same old image, and would take
		// over again. So this one stays, with nothing in hand, until it is removed.
		s.p.log.Info("waiting for this container to be removed")
		err := syscall.Exec("/proc/self/exe", []string{os.Args[0], retiredCommand}, os.Environ())
		s.p.log.Error("cannot wait", zap.Error(err))
	}
	os.Exit(0)
}
