package socket

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

// Engine is the socket engine.
type Engine struct {
	cfg   *engine.Config
	hubs  []*hub
	gates map[lb.Frontend]*gate
	next  int
}

// gate is the listening sockets of a frontend. There is one for each address of the
// host, since a socket on all of them would tell its clients all of them
// (RFC 9260 section 3.3.3), and they would send past what steers them here.
type gate struct {
	frontend lb.Frontend
	addr     netip.AddrPort // as asked for
	hub      *hub
	doors    map[netip.Addr]*door
}

// New makes an engine on the loops of config.
func New(config engine.Config) *Engine {
	cfg := config.WithDefaults()
	e := &Engine{cfg: cfg, gates: make(map[lb.Frontend]*gate)}
	for _, loop := range cfg.Loops.Loops() {
		h := &hub{cfg: cfg, loop: loop, all: e, open: make(map[*door]struct{}), router: [2]int{-1, -1}}
		h.pairs.next, h.pairs.prev = &h.pairs, &h.pairs
		e.hubs = append(e.hubs, h)
	}
	return e
}

// Listen starts forwarding for f what arrives at addr (engine.Engine).
func (e *Engine) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	if _, ok := e.gates[f]; ok {
		return netip.AddrPort{}, errors.New("listening already")
	}
	g := e.newGate(f, addr)
	hosts := hostAddrs()
	err := e.open(g, hosts)
	for try := 0; addr.Port() == 0 && errors.Is(err, unix.EADDRINUSE) && try < 100; try++ {
		e.shut(g)
		g.addr = netip.AddrPortFrom(addr.Addr(), uint16(engine.FirstChosen+rand.IntN(engine.LastChosen-engine.FirstChosen+1)))
		err = e.open(g, hosts)
	}
	if err != nil {
		e.shut(g)
		return netip.AddrPort{}, err
	}
	e.gates[f] = g
	return g.addr, nil
}

// newGate makes a gate without doors, of one loop after the other.
func (e *Engine) newGate(f lb.Frontend, addr netip.AddrPort) *gate {
	e.next++
	return &gate{frontend: f, addr: addr, hub: e.hubs[e.next%len(e.hubs)], doors: make(map[netip.Addr]*door)}
}

// open opens a gate's doors that are not open, on all of its addresses, and shuts
// those on addresses that the host no longer has.
func (e *Engine) open(g *gate, hosts []netip.Addr) error {
	addrs := []netip.Addr{g.addr.Addr()}
	if g.everywhere() {
		addrs = hosts
	}
	have := make(map[netip.Addr]bool)
	for _, a := range addrs {
		if a.Is6() != g.addr.Addr().Is6() {
			continue
		}
		if have[a] = true; g.doors[a] != nil {
			continue
		}
		d, got, err := e.newDoor(g, netip.AddrPortFrom(a, g.addr.Port()))
		if err == unix.EADDRNOTAVAIL {
			continue // it has just gone
		}
		if err != nil {
			return err
		}
		g.doors[a], g.addr = d, netip.AddrPortFrom(g.addr.Addr(), got)
	}
	for a, d := range g.doors {
		if !have[a] {
			d.shut()
			delete(g.doors, a)
		}
	}
	return nil
}

// everywhere reports whether the gate is on all addresses of the host.
func (g *gate) everywhere() bool { return g.addr.Addr().IsUnspecified() }

// hostAddrs returns the addresses of the host, but link-local ones, which mean
// nothing without an interface. None: they cannot be read.
func hostAddrs() (out []netip.Addr) {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr())
		}
	}
	return out
}

// newDoor listens on an address, and returns the port that it has.
func (e *Engine) newDoor(g *gate, addr netip.AddrPort) (*door, uint16, error) {
	fd, err := socket.New(addr.Addr(), unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err != nil {
		return nil, 0, err
	}
	d := &door{hub: g.hub, fd: fd, frontend: g.frontend}
	streams := uint16(e.cfg.MaxStreams)
	for _, step := range []func() error{
		func() error { return kernel.SetStreams(fd, streams, streams) },
		func() error { return kernel.SetOptions(fd, e.cfg.MaxMessage) },
		// Clients may have other addresses, but the way to them is not ours to take.
		func() error { return kernel.SetHeartbeats(fd, netip.AddrPort{}) },
		func() error { return socket.Bind(fd, addr) },
		func() error { return unix.Listen(fd, backlog) },
		func() (err error) { addr, err = socket.Local(fd); return err },
	} {
		if err := step(); err != nil {
			_ = unix.Close(fd)
			return nil, 0, err
		}
	}
	var started error
	if err := g.hub.loop.Do(func() { started = d.start() }); err != nil || started != nil {
		_ = unix.Close(fd)
		return nil, 0, errors.Join(err, started)
	}
	return d, addr.Port(), nil
}

func (e *Engine) shut(g *gate) {
	for _, d := range g.doors {
		d.shut()
	}
	clear(g.doors)
}

// Unlisten accepts no more associations for f; those that exist go on.
func (e *Engine) Unlisten(f lb.Frontend) {
	if g, ok := e.gates[f]; ok {
		e.shut(g)
		delete(e.gates, f)
	}
}

// TableChanged also follows the host's addresses, which change about as seldom as
// tables do. A dial that waits for a backend that is gone is over soon by itself.
func (e *Engine) TableChanged() {
	if len(e.gates) == 0 {
		return
	}
	hosts := hostAddrs()
	if len(hosts) == 0 {
		return // it could not be read, rather than that there is none
	}
	for _, g := range e.gates {
		if g.everywhere() && e.open(g, hosts) != nil {
			g.hub.count.AcceptErrors.Add(1) // tried again with the next table
		}
	}
}

// Drain refuses new associations.
func (e *Engine) Drain() error {
	for _, g := range e.gates {
		e.shut(g)
	}
	clear(e.gates)
	for _, h := range e.hubs {
		if err := h.loop.Do(h.drain); err != nil {
			return err
		}
	}
	return nil
}

// Drained waits until the last association has ended, or ctx has.
func (e *Engine) Drained(ctx context.Context) error {
	for _, h := range e.hubs {
		select {
		case <-h.drained:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close aborts every association and closes every socket.
func (e *Engine) Close() {
	for _, g := range e.gates {
		e.shut(g)
	}
	clear(e.gates)
	for _, h := range e.hubs {
		_ = h.loop.Do(h.stop) // a loop that has stopped has nobody left to race with
	}
}

// Stats returns the sum over all loops.
func (e *Engine) Stats() (sum engine.Stats) {
	for _, h := range e.hubs {
		h.count.AddTo(&sum)
	}
	return sum
}

// hub is the part of the socket engine that lives on one loop.
type hub struct {
	cfg     *engine.Config
	all     *Engine
	loop    *eventloop.Loop
	pairs   pair               // head of the list of associations
	open    map[*door]struct{} // doors of this loop
	retry   eventloop.Timer    // runs while accepting is paused
	next    int                // who takes the next association
	router  [2]int             // sockets to ask for routes, one a family; -1: not opened
	stopped bool
	drained chan struct{} // closed when draining has come to its end; nil before
	count   engine.Counters

	mu       sync.Mutex // guards the following
	arrivals []arrival  // that other loops have accepted, and this one has not taken in
}

func (h *hub) drain() {
	if h.drained == nil {
		h.drained = make(chan struct{})
		h.checkDrained()
	}
}

func (h *hub) checkDrained() {
	if h.drained == nil || h.pairs.next != &h.pairs {
		return
	}
	select {
	case <-h.drained:
	default:
		close(h.drained)
	}
}

func (h *hub) stop() {
	h.stopped = true
	for h.pairs.next != &h.pairs {
		h.pairs.next.abort()
	}
	for i, fd := range h.router {
		if fd >= 0 {
			_ = unix.Close(fd)
			h.router[i] = -1
		}
	}
}

// source returns the address of ours from which a backend is reached.
func (h *hub) source(peer netip.AddrPort) (netip.Addr, error) {
	at := &h.router[0]
	if peer.Addr().Is6() {
		at = &h.router[1]
	}
	if *at < 0 {
		fd, err := socket.New(peer.Addr(), unix.SOCK_DGRAM, 0)
		if err != nil {
			return netip.Addr{}, err
		}
		*at = fd
	}
	return socket.Source(*at, peer)
}
