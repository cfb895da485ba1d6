package agent

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// sockets are those that the agent has opened: proxy ports of UDP and SCTP frontends, and
// node ports and service addresses that the host holds, which are taken by the very
// sockets that serve them.
type sockets struct {
	server map[lb.Protocol]Sockets
	bind   [2]netip.Addr // where proxy ports listen, by family
	ports  redirect.PortRange

	proxy     map[lb.Frontend]netip.AddrPort // where steered UDP and SCTP frontends are served
	held      map[lb.Frontend]struct{}       // their address is where they listen
	conflicts map[lb.Frontend]lb.ID          // those that could not be held, and whose they should be

	news []Conflict // that have begun or ended since they were last taken
}

// Conflict is a port of a Service that another program has.
type Conflict struct {
	Service  lb.ID
	Frontend lb.Frontend
	Err      error // nil: it is over, the port is ours or no longer wanted
}

func newSockets() sockets {
	return sockets{proxy: make(map[lb.Frontend]netip.AddrPort), held: make(map[lb.Frontend]struct{}),
		conflicts: make(map[lb.Frontend]lb.ID)}
}

// open opens what a service port needs and is not open yet. It returns how many are lacking,
// and why proxy ports are. That another program has a node port or an address is a
// conflict, which touches nothing else.
func (s *sockets) open(p *piece) (lacking int, errs []error) {
	for _, so := range p.sockets {
		if !so.proxy {
			if !s.hold(so.frontend, p.service.ID) {
				lacking++
			}
		} else if err := s.listen(so.frontend); err != nil {
			lacking++
			errs = append(errs, fmt.Errorf("open proxy port for %s of %s: %w", so.frontend, p.service.ID, err))
		}
	}
	return lacking, errs
}

// listen opens the proxy port of a UDP or SCTP frontend. One that was taken over and is not
// where this process listens is replaced: a frontend has one socket, so that its flows end.
func (s *sockets) listen(f lb.Frontend) error {
	bind := s.bind[family(f.Addr.Addr().Is6())]
	was, ok := s.proxy[f]
	if ok && was.Addr() == bind && s.ports.Contains(was.Port()) {
		return nil
	}
	s.close(f) // bound elsewhere, or a node port until now
	var got netip.AddrPort
	_, err := s.ports.Claim(func(port uint16) (err error) {
		got, err = s.server[f.Protocol].Listen(f, netip.AddrPortFrom(bind, port))
		return err
	})
	if err == nil {
		s.proxy[f] = netip.AddrPortFrom(bind, got.Port())
	}
	return err
}

// reopen opens the proxy ports of before of frontends that the table steers, as far as they
// can be had. What is not to be steered after all is closed by the first plan.
func (s *sockets) reopen(table *lb.Table, ports map[lb.Frontend]uint16) {
	for f, port := range ports {
		server := s.server[f.Protocol]
		if _, addr, ok := table.Lookup(f); !ok || addr.Kind == lb.NodePort || !s.ports.Contains(port) || server == nil {
			continue
		}
		at := netip.AddrPortFrom(s.bind[family(f.Addr.Addr().Is6())], port)
		if _, err := server.Listen(f, at); err == nil {
			s.proxy[f] = at
		}
	}
}

// hold listens on a node port or a service address unless it does, and reports whether
// it does.
func (s *sockets) hold(f lb.Frontend, id lb.ID) bool {
	if _, ok := s.held[f]; ok {
		return true
	}
	s.close(f) // steered until now
	if _, err := s.server[f.Protocol].Listen(f, f.Addr); err != nil {
		if s.conflicts[f] != id {
			s.settled(f)
			s.conflicts[f] = id
			s.news = append(s.news, Conflict{id, f, fmt.Errorf("hold port %d of %s: %w", f.Addr.Port(), id, err)})
		}
		return false
	}
	s.held[f] = struct{}{}
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

// close closes the socket of a frontend, if there is one.
func (s *sockets) close(f lb.Frontend) {
	_, proxy := s.proxy[f]
	if _, held := s.held[f]; proxy || held {
		s.server[f.Protocol].Unlisten(f)
		delete(s.proxy, f)
		delete(s.held, f)
	}
}

// closeUnwanted closes the sockets that a plan leaves without a service port.
func (s *sockets) closeUnwanted(plan *Plan) {
	unwanted := make(map[lb.Frontend]struct{})
	note := func(f lb.Frontend) { unwanted[f] = struct{}{} }
	if plan.whole {
		for f := range maps.Keys(s.proxy) {
			note(f)
		}
		for f := range maps.Keys(s.held) {
			note(f)
		}
		for f := range maps.Keys(s.conflicts) {
			note(f)
		}
	}
	for _, c := range plan.changes {
		if c.old != nil {
			for _, so := range c.old.sockets {
				note(so.frontend)
			}
		}
	}
	for _, c := range plan.changes {
		if c.now != nil {
			for _, so := range c.now.sockets {
				delete(unwanted, so.frontend)
			}
		}
	}
	for f := range unwanted {
		s.close(f)
		s.settled(f)
	}
}

// steer returns the entries of a piece as far as there are sockets for them.
func (s *sockets) steer(p *piece) []redirect.Entry {
	out := p.entries
	shared := true
	for i, e := range p.entries {
		now := e
		switch {
		case e.Action == redirect.Redirect && e.Frontend.Protocol != lb.TCP:
			if now.Port = s.proxy[e.Frontend].Port(); now.Port == 0 {
				now.Action = redirect.Pass
			}
		case e.Action == redirect.Accept:
			if _, held := s.held[e.Frontend]; !held {
				now.Action = redirect.Pass
			}
		}
		if shared && sameEntry(now, e) {
			continue
		}
		if shared {
			out, shared = append([]redirect.Entry(nil), p.entries[:i]...), false
		}
		if now.Action != redirect.Pass || now.DropOutside || len(now.Sources) > 0 {
			out = append(out, now)
		}
	}
	return out
}
