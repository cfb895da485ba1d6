package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// sockets are those that the agent has opened: proxy ports of UDP and SCTP frontends, and
// node ports and service addresses that the host holds, which are taken by the very
// sockets that serve them.
type sockets struct {
	config    *Config
	open      map[lb.Frontend]Socket
	conflicts map[lb.Frontend]lb.ID // those that could not be held, and whose they should be

	shares // of file descriptors

	news    []Conflict           // that have begun or ended since they were last taken
	goingOn map[lb.Frontend]bool // proxy ports of UDP that no service port needs, but flows do
	moved   []lb.Frontend        // whose proxy port before is open still
}

// Socket is the open socket of a frontend.
type Socket struct {
	Frontend lb.Frontend
	Addr     netip.AddrPort // that it is bound to
	Proxy    bool           // on a proxy port; false: on the address of the frontend itself
}

// proxyPort returns the port at which a steered frontend is served; 0: there is none.
func (s *sockets) proxyPort(f lb.Frontend) uint16 {
	if so := s.open[f]; so.Proxy {
		return so.Addr.Port()
	}
	return 0
}

// holds reports whether a socket listens on the address of the frontend.
func (s *sockets) holds(f lb.Frontend) bool {
	so, ok := s.open[f]
	return ok && !so.Proxy
}

// Conflict is a port of a Service that another program has.
type Conflict struct {
	Service  lb.ID
	Frontend lb.Frontend
	Err      error // nil: it is over, the port is ours or no longer wanted
}

// provide opens what a plan needs and is not open yet. It returns the service ports that lack
// any; the error says why proxy ports are. That another program has a node port or an address
// is a conflict, and that file descriptors are few a shortage; these touch nothing else.
func (s *sockets) provide(plan *Plan) (lacking []*row, err error) {
	var errs []error
	for _, c := range plan.changes {
		for _, so := range c.now.sockets {
			if !so.proxy {
				if !s.listenAt(so.frontend, c.id()) {
					lacking = append(lacking, c.port)
				}
			} else if err := s.listen(so.frontend, c.id()); err != nil {
				lacking = append(lacking, c.port)
				if !s.lacks(so.frontend, c.id(), err) {
					errs = append(errs, fmt.Errorf("open proxy port for %s of %s: %w", so.frontend, c.id(), err))
				}
			}
		}
	}
	return lacking, errors.Join(errs...)
}

// listen opens the proxy port of a UDP or SCTP frontend. One that was taken over and is not
// where this process listens is replaced, if another can be had. The flows of UDP move when they are steered there;
// those of SCTP stay with sockets of their own.
func (s *sockets) listen(f lb.Frontend, id lb.ID) error {
	bind := s.config.bind(f)
	if was := s.open[f]; was.Proxy && was.Addr.Addr() == bind && s.config.Ports.Contains(was.Addr.Port()) {
		s.keep(was, id.Service())
		return nil
	}
	if err := s.room(f, id); err != nil {
		return err
	}
	listen := s.config.Servers[f.Protocol].Listen
	moves := s.open[f].Proxy && f.Protocol == lb.UDP && s.config.Moving != nil
	if moves {
		listen = s.config.Moving.Move
	} else {
		s.close(f) // bound elsewhere, or a node port until now
	}
	var got netip.AddrPort
	_, err := s.config.Ports.Claim(func(port uint16) (err error) {
		got, err = listen(f, netip.AddrPortFrom(bind, port))
		return err
	})
	if err != nil {
		return err
	}
	s.keep(Socket{f, netip.AddrPortFrom(bind, got.Port()), true}, id.Service())
	if moves {
		s.moved = append(s.moved, f)
	}
	return nil
}

// moveFlows moves flows to the proxy ports that they are steered to from now on. What arrives at those before is lost
// until conntrack's entries are deleted.
func (s *sockets) moveFlows() {
	for _, f := range s.moved {
		s.config.Moving.Leave(f)
	}
}

// settle closes the proxy ports that were left.
func (s *sockets) settle() {
	for _, f := range s.moved {
		s.config.Moving.Settle(f)
	}
	s.moved = nil
}

// reopen opens the proxy ports of before of frontends that the table steers, as far as they
// can be had. What is not to be steered after all is closed by the first plan.
func (s *sockets) reopen(table *lb.Table, ports map[lb.Frontend]uint16) {
	for f, port := range ports {
		server := s.config.Servers[f.Protocol]
		service, addr, ok := table.Lookup(f)
		if !ok || addr.Kind == lb.NodePort || !s.config.Ports.Contains(port) || server == nil {
			continue
		}
		at := netip.AddrPortFrom(s.config.bind(f), port)
		if _, err := server.Listen(f, at); err == nil {
			s.keep(Socket{f, at, true}, service.ID.Service())
		}
	}
}

// rehold listens on node ports, those that can be had.
func (s *sockets) rehold(table *lb.Table, frontends []lb.Frontend) {
	for _, f := range frontends {
		server := s.config.Servers[f.Protocol]
		if server == nil {
			continue
		}
		if _, err := server.Listen(f, f.Addr); err == nil {
			s.keep(Socket{f, f.Addr, false}, owner(table, f))
		}
	}
}

// listenAt listens on a node port or a service address unless it does, and reports whether
// it does.
func (s *sockets) listenAt(f lb.Frontend, id lb.ID) bool {
	if s.holds(f) {
		return true
	}
	s.close(f) // steered until now
	err := s.room(f, id)
	if err == nil {
		_, err = s.config.Servers[f.Protocol].Listen(f, f.Addr)
	}
	if err != nil && s.lacks(f, id, err) {
		s.settled(f)
		return false
	}
	if err != nil {
		if s.conflicts[f] != id {
			s.settled(f)
			s.conflicts[f] = id
			s.news = append(s.news, Conflict{id, f, fmt.Errorf("hold port %d of %s: %w", f.Addr.Port(), id, err)})
		}
		return false
	}
	s.keep(Socket{f, f.Addr, false}, id.Service())
	s.settled(f)
	return true
}

// settled ends a conflict, if there is one.
func (s *sockets) settled(f lb.Frontend) {
	if id, ok := s.conflicts[f]; ok {
		delete(s.conflicts, f)
		s.news = append(s.news, Conflict{Service: id, Frontend: f})
	}
}

// wanting reports whether sockets are to be had that could not be.
func (s *sockets) wanting() bool { return len(s.conflicts) > 0 || len(s.short) > 0 }

// close closes the socket of a frontend, if there is one.
func (s *sockets) close(f lb.Frontend) {
	if _, ok := s.open[f]; ok {
		s.config.Servers[f.Protocol].Unlisten(f)
		s.forget(f)
	}
}

// unwanted returns the frontends of sockets that a plan leaves without a service port.
func (s *sockets) unwanted(plan *Plan) map[lb.Frontend]bool {
	unwanted := make(map[lb.Frontend]bool)
	if plan.whole {
		for f := range s.open {
			unwanted[f] = true
		}
		for f := range s.conflicts {
			unwanted[f] = true
		}
		for f := range s.short {
			unwanted[f] = true
		}
	}
	for _, c := range plan.changes {
		for _, so := range c.old.sockets {
			unwanted[so.frontend] = true
		}
	}
	for _, c := range plan.changes {
		for _, so := range c.now.sockets {
			delete(unwanted, so.frontend)
			delete(s.goingOn, so.frontend)
		}
	}
	return unwanted
}

// goOn removes from unwanted the UDP proxy ports whose flows go on. inKernel reports whether a kernel path serves a
// frontend now. A port that went on and lost its last flow is unwanted again; goOn returns these.
func (s *sockets) goOn(unwanted map[lb.Frontend]bool, inKernel func(lb.Frontend) bool) (ended []lb.Frontend) {
	goesOn := func(f lb.Frontend) bool { return s.hasFlows(f) && inKernel(f) }
	for f := range unwanted {
		if goesOn(f) {
			delete(unwanted, f)
			s.goingOn[f] = true
		}
	}
	for f := range s.goingOn {
		if !goesOn(f) {
			delete(s.goingOn, f)
			unwanted[f] = true
			ended = append(ended, f)
		}
	}
	return ended
}

// hasFlows reports whether a frontend of UDP has a proxy port with flows.
func (s *sockets) hasFlows(f lb.Frontend) bool {
	return f.Protocol == lb.UDP && s.config.Moving != nil && s.open[f].Proxy && s.config.Moving.Flows(f) > 0
}

// emptied reports whether a proxy port that went on has no flow any more.
func (s *sockets) emptied() bool {
	for f := range s.goingOn {
		if !s.hasFlows(f) {
			return true
		}
	}
	return false
}

// closeAll closes sockets.
func (s *sockets) closeAll(unwanted map[lb.Frontend]bool) {
	for f := range unwanted {
		s.close(f)
		s.settled(f)
		s.supplied(f)
	}
}

// steer returns the entries of a piece as far as there are sockets for them.
func (s *sockets) steer(p *piece) []redirect.Entry {
	out := make([]redirect.Entry, 0, len(p.entries))
	for _, e := range p.entries {
		switch {
		case e.Action == redirect.Redirect && e.Frontend.Protocol != lb.TCP:
			if e.Port = s.proxyPort(e.Frontend); e.Port == 0 {
				e.Action = redirect.Pass
			}
		case e.Action == redirect.Accept && !s.holds(e.Frontend):
			if e.Action = redirect.Pass; !e.DropOutside {
				continue // a node port, at which nothing is to happen
			}
		}
		out = append(out, e)
	}
	if slices.EqualFunc(out, p.entries, redirect.Entry.Equal) {
		return p.entries // which is kept anyway
	}
	return out
}
