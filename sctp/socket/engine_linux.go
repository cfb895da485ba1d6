package socket

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

// Engine is the socket engine.
type Engine struct {
	cfg       *engine.Config
	shards    []*shard
	frontends map[lb.Frontend]*frontend
	next      int
}

// frontend is the listening sockets of a frontend: one for each address of the host, since a socket on all would
// announce all to its clients (RFC 9260 section 3.3.3), and they would send past what steers them here.
type frontend struct {
	lb.Frontend
	addr      netip.AddrPort // as asked for
	sh        *shard
	listeners map[netip.Addr]*session.Listener[*assoc]
}

// New makes an engine on the loops of config.
func New(config engine.Config) *Engine {
	e := &Engine{cfg: config.WithDefaults(), frontends: make(map[lb.Frontend]*frontend)}
	for _, loop := range e.cfg.Loops.Loops() {
		e.shards = append(e.shards, newShard(e, loop))
	}
	return e
}

// Listen starts forwarding for f what arrives at addr (engine.Engine).
func (e *Engine) Listen(f lb.Frontend, addr netip.AddrPort) error {
	if _, ok := e.frontends[f]; ok {
		return errors.New("listening already")
	}
	front := e.newFrontend(f, addr)
	if err := front.update(hostAddrs()); err != nil {
		front.close()
		return err
	}
	e.frontends[f] = front
	return nil
}

// newFrontend makes a frontend without listeners, of one loop after the other.
func (e *Engine) newFrontend(f lb.Frontend, addr netip.AddrPort) *frontend {
	e.next++
	sh := e.shards[e.next%len(e.shards)]
	return &frontend{Frontend: f, addr: addr, sh: sh, listeners: make(map[netip.Addr]*session.Listener[*assoc])}
}

// update listens on those of the frontend's addresses, hosts if it is on all, that it does not listen on, and no longer
// on those that the host has lost.
func (front *frontend) update(hosts []netip.Addr) error {
	addrs := []netip.Addr{front.addr.Addr()}
	if front.everywhere() {
		addrs = hosts
	}
	have := make(map[netip.Addr]bool)
	for _, a := range addrs {
		if a.Is6() != front.addr.Addr().Is6() {
			continue
		}
		if have[a] = true; front.listeners[a] != nil {
			continue
		}
		l, err := front.listen(netip.AddrPortFrom(a, front.addr.Port()))
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			continue // it has just gone
		}
		if err != nil {
			return err
		}
		front.listeners[a] = l
	}
	for a, l := range front.listeners {
		if !have[a] {
			front.stop(l)
			delete(front.listeners, a)
		}
	}
	return nil
}

// everywhere reports whether the frontend is on all addresses of the host.
func (front *frontend) everywhere() bool { return front.addr.Addr().IsUnspecified() }

// hostAddrs returns the addresses of the host, but link-local ones. None: they cannot be read.
func hostAddrs() (out []netip.Addr) {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr())
		}
	}
	return out
}

// stop closes a Listener.
func (front *frontend) stop(l *session.Listener[*assoc]) {
	l.Close()
	front.sh.engine.cfg.Descriptors.Listening(-1)
}

// listen listens on an address.
func (front *frontend) listen(addr netip.AddrPort) (l *session.Listener[*assoc], err error) {
	descriptors := front.sh.engine.cfg.Descriptors
	if _, err := descriptors.Listen(1); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			descriptors.Listening(-1)
		}
	}()
	fd, err := socket.New(addr.Addr(), unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		kernel.SetStreams(fd, maxStreams, maxStreams),
		kernel.SetOptions(fd, maxMessage),
		// Clients may have other addresses, but the way to them is not ours to take.
		kernel.SetHeartbeats(fd, netip.AddrPort{}),
		socket.Bind(fd, addr),
	); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	l = front.listener(fd)
	if err := l.Start(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// listener returns the Listener of a bound socket of the frontend.
func (front *frontend) listener(fd int) *session.Listener[*assoc] {
	sh := front.sh
	return sh.NewListener(fd, func(fd int, peer netip.AddrPort) { sh.handOut(accepted{fd, peer, front.Frontend}) })
}

func (front *frontend) close() {
	for _, l := range front.listeners {
		front.stop(l)
	}
	clear(front.listeners)
}

// StopListening closes every listener (engine.Engine).
func (e *Engine) StopListening() {
	for _, front := range e.frontends {
		front.close()
	}
	clear(e.frontends)
}

// Unlisten accepts no more associations for f; those that exist go on.
func (e *Engine) Unlisten(f lb.Frontend) {
	if front, ok := e.frontends[f]; ok {
		front.close()
		delete(e.frontends, f)
	}
}

// TableChanged has held clients go on, and follows the host's addresses, which change about as seldom as tables do. A
// dial that waits for a backend that is gone is over soon by itself.
func (e *Engine) TableChanged() {
	for _, sh := range e.shards {
		sh.Wake()
	}
	if len(e.frontends) == 0 {
		return
	}
	hosts := hostAddrs()
	if len(hosts) == 0 {
		return // it could not be read, rather than that there is none
	}
	for _, front := range e.frontends {
		if front.everywhere() && front.update(hosts) != nil {
			front.sh.count.AcceptErrors.Add(1) // tried again with the next table
		}
	}
}

// Parts returns the shards (engine.Engine).
func (e *Engine) Parts() (all []engine.Part) {
	for _, sh := range e.shards {
		all = append(all, engine.Part{Do: sh.Loop.Do, Start: sh.StartDrain, Drain: &sh.Drain, Count: &sh.count,
			Stop: sh.stop, Look: sh.look})
	}
	return all
}
