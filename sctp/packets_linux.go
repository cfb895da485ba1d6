package sctp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

const (
	// maxShards bounds the loops that take part: every raw socket gets a copy of
	// every packet (raw_v4_input), only to have its filter drop those of others.
	maxShards = 8

	// Ports that are given to frontends that ask for any, below those towards backends
	// and those of node ports.
	firstChosen = 16384
	lastChosen  = 29999
)

// packets is the packet engine.
type packets struct {
	shards    []*shard
	scanning  []atomic.Bool // a scan of the shard is posted and has not begun
	listeners map[lb.Frontend]netip.AddrPort
}

// newPackets makes an engine with n shards, 0 for one on each loop.
func newPackets(s *Server, n int) *packets {
	loops := s.Loops.Loops()
	e := &packets{listeners: make(map[lb.Frontend]netip.AddrPort)}
	if n == 0 {
		n = min(len(loops), maxShards)
	}
	e.scanning = make([]atomic.Bool, n)
	for i := range n {
		sh := newShard(s, loops[i%len(loops)], i, n)
		sh.ports = uint16(firstPort + rand.IntN(lastPort-firstPort))
		e.shards = append(e.shards, sh)
	}
	return e
}

func (e *packets) listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	if _, ok := e.listeners[f]; ok {
		return netip.AddrPort{}, errors.New("listening already")
	}
	addr, err := e.claim(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	key := keyOf(addr)
	for i, sh := range e.shards {
		var started error
		if err := sh.loop.Do(func() { started = sh.listen(key, f) }); err != nil || started != nil {
			e.stopListening(key, e.shards[:i])
			return netip.AddrPort{}, errors.Join(err, started)
		}
	}
	e.listeners[f] = addr
	return addr, nil
}

// keyOf returns where packets to a frontend that listens at addr arrive.
func keyOf(addr netip.AddrPort) frontendKey {
	k := frontendKey{ipv6: addr.Addr().Is6(), port: addr.Port()}
	if !addr.Addr().IsUnspecified() {
		k.addr = addr.Addr()
	}
	return k
}

// claim returns addr with a port that no other frontend has at it. With raw sockets
// there is nobody else to ask.
func (e *packets) claim(addr netip.AddrPort) (netip.AddrPort, error) {
	free := func(addr netip.AddrPort) bool {
		mine := keyOf(addr)
		for _, taken := range e.listeners {
			k := keyOf(taken)
			if k.port == mine.port && k.ipv6 == mine.ipv6 && (k.addr == mine.addr || !k.addr.IsValid() || !mine.addr.IsValid()) {
				return false
			}
		}
		return true
	}
	if addr.Port() != 0 {
		if !free(addr) {
			return addr, unix.EADDRINUSE
		}
		return addr, nil
	}
	first := rand.IntN(lastChosen - firstChosen + 1)
	for i := range lastChosen - firstChosen + 1 {
		port := firstChosen + (first+i)%(lastChosen-firstChosen+1)
		if at := netip.AddrPortFrom(addr.Addr(), uint16(port)); free(at) {
			return at, nil
		}
	}
	return addr, fmt.Errorf("choose a port: %w", unix.EADDRINUSE)
}

func (e *packets) unlisten(f lb.Frontend) {
	if addr, ok := e.listeners[f]; ok {
		delete(e.listeners, f)
		e.stopListening(keyOf(addr), e.shards)
	}
}

func (e *packets) stopListening(key frontendKey, shards []*shard) {
	for _, sh := range shards {
		_ = sh.loop.Do(func() { delete(sh.listeners, key) }) // fails for a loop that has stopped
	}
}

func (e *packets) tableChanged() {
	for i, sh := range e.shards {
		posted := &e.scanning[i]
		scan := func() { posted.Store(false); sh.leaveGone() }
		if posted.CompareAndSwap(false, true) && sh.loop.Post(scan) != nil {
			posted.Store(false)
		}
	}
}

func (e *packets) drain() error {
	for _, sh := range e.shards {
		if err := sh.loop.Do(sh.drain); err != nil {
			return err
		}
	}
	return nil
}

func (e *packets) drained(ctx context.Context) error {
	for _, sh := range e.shards {
		select {
		case <-sh.drained:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (e *packets) close() {
	for _, sh := range e.shards {
		_ = sh.loop.Do(sh.stop) // a loop that has stopped has nobody left to race with
	}
}

func (e *packets) stats() (sum Stats) {
	for _, sh := range e.shards {
		sh.count.addTo(&sum)
	}
	return sum
}
