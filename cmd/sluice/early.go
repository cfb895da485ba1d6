package main

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// earlyPause is the least time between two walks through conntrack's table, each of which takes
// the kernel some 10 ms of one core where it has 262,144 buckets, however few entries are in
// them. A client sends its first packet again after a second (RFC 6298), and later.
const earlyPause = 250 * time.Millisecond

// early has clients forgotten who have asked a Service of TCP or SCTP before it was there.
// netfilter looks at rules only for the first packet of a connection, and one that is sent
// again is none: conntrack has an entry that leads to nowhere, and keeps it for as long as
// the client goes on asking. Without it the next packet finds the Service. This is no part of
// bringing a change into force, which does not wait for it. The zero early does nothing.
type early struct {
	ipv4, ipv6 earlyFamily
	wake       chan struct{} // one token: somebody has begun

	mu    sync.Mutex
	begun []lb.Frontend
}

type earlyFamily struct {
	deleted atomic.Uint64
	observe func(time.Duration) // told how long a search took; may be nil
}

// forgetEarly has them forgotten until ctx ends, in every mode that steers.
func (p *program) forgetEarly(ctx context.Context) {
	if p.cfg.Mode == config.ModeWinUserspace {
		return
	}
	p.early.wake = make(chan struct{}, 1)
	p.agent.Begun = p.early.add
	p.background.Go(func() { p.early.run(ctx, p.log) })
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
func (e *early) add(begun []lb.Frontend) {
	e.mu.Lock()
	e.begun = append(e.begun, begun...)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default: // a token lies there already
	}
}

func (e *early) run(ctx context.Context, log *zap.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		e.mu.Lock()
		begun := e.begun
		e.begun = nil
		e.mu.Unlock()
		for _, ipv6 := range []bool{false, true} {
			if err := e.of(ipv6).forget(ipv6, begun); err != nil {
				log.Warn("clients who have asked for a Service too early may wait until they give up", zap.Error(err))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(earlyPause):
		}
	}
}

func (e *early) of(ipv6 bool) *earlyFamily {
	if ipv6 {
		return &e.ipv6
	}
	return &e.ipv4
}

// forget deletes the entries of those frontends that are of the family.
func (f *earlyFamily) forget(ipv6 bool, begun []lb.Frontend) error {
	var tcp, sctp []netip.AddrPort
	for _, at := range begun {
		switch {
		case at.Addr.Addr().Is6() != ipv6:
		case at.Protocol == lb.SCTP:
			sctp = append(sctp, at.Addr)
		default:
			tcp = append(tcp, at.Addr)
		}
	}
	if len(tcp)+len(sctp) == 0 {
		return nil
	}
	start := time.Now()
	n, err := redirect.DeleteUnanswered(ipv6, tcp, sctp)
	f.deleted.Add(n)
	if f.observe != nil {
		f.observe(time.Since(start))
	}
	return err
}
