package packet

import (
	"errors"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/engine"
)

const (
	// MaxShards bounds the loops that take part: every raw socket gets a copy of
	// every packet (raw_v4_input), only to have its filter drop those of others.
	MaxShards = 8

	// socketBuffer is how many bytes the kernel may queue at each raw socket, each way, its own overhead included.
	// Without CAP_NET_ADMIN it is capped at net.core.rmem_max and wmem_max.
	socketBuffer = 4 << 20
)

// Engine is the packet engine.
type Engine struct {
	shards    []*shard
	listeners map[lb.Frontend]netip.AddrPort
}

// New makes an engine with n shards, 0 for one on each loop.
func New(config engine.Config, n int) *Engine {
	cfg := config.WithDefaults()
	loops := cfg.Loops.Loops()
	e := &Engine{listeners: make(map[lb.Frontend]netip.AddrPort)}
	if n == 0 {
		n = min(len(loops), MaxShards)
	}
	for i := range n {
		sh := newShard(cfg, loops[i%len(loops)], i, n)
		sh.ports = uint16(firstPort + rand.IntN(lastPort-firstPort))
		e.shards = append(e.shards, sh)
	}
	return e
}

// Listen starts forwarding for f what arrives at addr (engine.Engine).
func (e *Engine) Listen(f lb.Frontend, addr netip.AddrPort) error {
	if _, ok := e.listeners[f]; ok {
		return errors.New("listening already")
	}
	key := keyOf(addr)
	if !e.free(key) {
		return unix.EADDRINUSE
	}
	for i, sh := range e.shards {
		var started error
		if err := sh.loop.Do(func() { started = sh.listen(key, f) }); err != nil || started != nil {
			e.forget(key, e.shards[:i])
			return errors.Join(err, started)
		}
	}
	e.listeners[f] = addr
	return nil
}

// keyOf returns where packets to a frontend that listens at addr arrive.
func keyOf(addr netip.AddrPort) frontendKey {
	k := frontendKey{ipv6: addr.Addr().Is6(), port: addr.Port()}
	if !addr.Addr().IsUnspecified() {
		k.addr = addr.Addr()
	}
	return k
}

// free reports whether no frontend has a key, or one that overlaps. Raw sockets have no ports that the kernel could
// refuse.
func (e *Engine) free(mine frontendKey) bool {
	for _, addr := range e.listeners {
		k := keyOf(addr)
		overlap := k.addr == mine.addr || !k.addr.IsValid() || !mine.addr.IsValid()
		if k.port == mine.port && k.ipv6 == mine.ipv6 && overlap {
			return false
		}
	}
	return true
}

// Unlisten accepts no more associations for f; those that exist go on.
func (e *Engine) Unlisten(f lb.Frontend) {
	if addr, ok := e.listeners[f]; ok {
		delete(e.listeners, f)
		e.forget(keyOf(addr), e.shards)
	}
}

func (e *Engine) forget(key frontendKey, shards []*shard) {
	for _, sh := range shards {
		_ = sh.loop.Do(func() { delete(sh.listeners, key) }) // fails for a loop that has stopped
	}
}

// TableChanged moves what is not established away from backends that are gone.
func (e *Engine) TableChanged() {
	for _, sh := range e.shards {
		_ = sh.loop.Post(sh.leaveGone) // fails for a loop that has stopped
	}
}

// StopListening leaves it to the shards to count the INITs that they do not answer while they drain.
func (e *Engine) StopListening() {}

// Parts returns the shards (engine.Engine).
func (e *Engine) Parts() (all []engine.Part) {
	for _, sh := range e.shards {
		all = append(all, engine.Part{Do: sh.loop.Do, Start: func() { sh.drain.Start(sh.idle()) }, Drain: &sh.drain,
			Count: &sh.count, Stop: sh.stop, Look: sh.look})
	}
	return all
}
