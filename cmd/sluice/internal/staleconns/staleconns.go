package staleconns

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// minPause is the least time between two walks through conntrack's table for a family, each
// of which takes the kernel some 10 ms of one core where it has 262,144 buckets, however few
// entries are in them. A client sends its first packet again after a second (RFC 6298), and
// later. After an error, such as file descriptors being exhausted, the pause grows.
const (
	minPause = 250 * time.Millisecond
	maxPause = 4 * time.Second
)

// retryFor is for how long a walk that fails is tried again: a client on Linux asks for
// 127 s (tcp_syn_retries in tcp(7)), and conntrack keeps what is not answered for 120 s. A
// kernel without nf_conntrack_netlink is not asked for ever.
const retryFor = 2 * time.Minute

// Cleaner deletes the entries of one address family.
type Cleaner struct {
	IPv6 bool
	Log  *zap.Logger
	// Observe is passed how long each walk took. May be nil.
	Observe func(time.Duration)

	deleted atomic.Uint64
	wake    chan struct{} // one token: added holds something

	mu    sync.Mutex
	added map[lb.Frontend]time.Time // until when deleting its stale entries is of use
}

// New returns a Cleaner of one family.
func New(ipv6 bool, log *zap.Logger) *Cleaner {
	return &Cleaner{IPv6: ipv6, Log: log, wake: make(chan struct{}, 1)}
}

// Deleted returns how many entries were deleted. Any goroutine may call it.
func (c *Cleaner) Deleted() uint64 { return c.deleted.Load() }

// Add queues new frontends, of which those of the other family are ignored. It does not
// block, and any goroutine may call it.
func (c *Cleaner) Add(frontends []lb.Frontend) {
	until := time.Now().Add(retryFor)
	list := make(map[lb.Frontend]time.Time)
	for _, at := range frontends {
		if at.Addr.Addr().Is6() == c.IPv6 {
			list[at] = until
		}
	}
	c.queue(list)
}

func (c *Cleaner) queue(list map[lb.Frontend]time.Time) {
	if len(list) == 0 {
		return
	}
	c.mu.Lock()
	maps.Copy(list, c.added)
	c.added = list
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // a token lies there already
	}
}

func (c *Cleaner) take() map[lb.Frontend]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.added
	c.added = nil
	return list
}

// Run deletes entries until ctx ends.
func (c *Cleaner) Run(ctx context.Context) {
	pause, logged := minPause, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		list := c.take()
		start := time.Now()
		of := make(map[lb.Protocol][]netip.AddrPort)
		for at := range list {
			of[at.Protocol] = append(of[at.Protocol], at.Addr)
		}
		n, err := conntrack.DeleteUnreplied(c.IPv6, of[lb.TCP], of[lb.SCTP])
		c.deleted.Add(n)
		if c.Observe != nil {
			c.Observe(time.Since(start))
		}
		switch {
		case err == nil:
			pause, logged = minPause, false
		case !logged:
			logged = true
			c.Log.Warn("cannot delete stale conntrack entries, retrying", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if err != nil {
			pause = min(2*pause, maxPause)
			now := time.Now()
			maps.DeleteFunc(list, func(_ lb.Frontend, until time.Time) bool { return !now.Before(until) })
			c.queue(list)
		}
	}
}
