package agent

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// sockets are those that the agent has had opened: proxy ports of UDP and
// SCTP frontends, and node ports and service addresses that the host
// holds, which are taken by the very sockets that serve them.
type sockets struct {
	proxy     map[lb.Frontend]netip.AddrPort // where steered UDP and SCTP frontends are served
	held      map[lb.Frontend]struct{}       // their address is where they listen
	conflicts map[lb.Frontend]conflict       // those that could not be had

	// fixed has nothing be opened or closed, to see what would be: lacking says that
	// something is not open that should be.
	fixed, lacking bool
}

// conflict is a port that somebody else has.
type conflict struct {
	id  lb.ID // whose it should be
	err error
}

func (s *sockets) init() {
	s.proxy = make(map[lb.Frontend]netip.AddrPort)
	s.held = make(map[lb.Frontend]struct{})
	s.conflicts = make(map[lb.Frontend]conflict)
}

// steered returns the proxy port of a UDP or SCTP frontend, opening it if need be. One
// that was taken over and is not where this process listens is replaced: a frontend has one
// socket, so that its flows end.
func (s *sockets) steered(a *Agent, f lb.Frontend) (uint16, error) {
	bind := a.family(f.Addr.Addr().Is6()).Bind
	was, ok := s.proxy[f]
	fits := ok && was.Addr() == bind && a.Ports.Contains(was.Port())
	if fits || s.fixed {
		s.lacking = s.lacking || !fits
		return was.Port(), nil
	}
	if _, held := s.held[f]; held || ok { // a node port until now, or bound elsewhere
		a.datagrams(f).Unlisten(f)
		delete(s.held, f)
		delete(s.proxy, f)
	}
	var got netip.AddrPort
	_, err := a.Ports.Claim(func(port uint16) (err error) {
		got, err = a.datagrams(f).Listen(f, netip.AddrPortFrom(bind, port))
		return err
	})
	if err != nil {
		return 0, err
	}
	s.proxy[f] = netip.AddrPortFrom(bind, got.Port())
	return got.Port(), nil
}

// reopen opens the proxy ports of before of frontends that are served, those that can be
// had. What is not to be steered after all is closed by the first Apply.
func (s *sockets) reopen(a *Agent, ports map[lb.Frontend]uint16) {
	table := a.LB.Table()
	for f, port := range ports {
		if _, addr, ok := table.Lookup(f); !ok || addr.Kind == lb.NodePort || !a.Ports.Contains(port) || f.Protocol == lb.SCTP && a.SCTP == nil {
			continue
		}
		at := netip.AddrPortFrom(a.family(f.Addr.Addr().Is6()).Bind, port)
		if _, err := a.datagrams(f).Listen(f, at); err == nil {
			s.proxy[f] = at
		}
	}
}

// hold listens on a node port or a service address unless it does, and reports whether
// it does. That somebody else has the port is remembered as a conflict and touches
// nothing else; it is tried again with every Apply.
func (s *sockets) hold(a *Agent, f lb.Frontend, id lb.ID) bool {
	if _, ok := s.held[f]; ok {
		return true
	}
	if s.fixed {
		s.lacking = s.lacking || s.conflicts[f].id != id // else it is not to be had, probably
		return false
	}
	if _, ok := s.proxy[f]; ok { // steered until now
		a.datagrams(f).Unlisten(f)
		delete(s.proxy, f)
	}
	var err error
	if f.Protocol == lb.TCP {
		_, err = a.TCP.Listen(f.Addr)
	} else {
		_, err = a.datagrams(f).Listen(f, f.Addr)
	}
	if err != nil {
		s.begin(a, f, conflict{id, fmt.Errorf("hold port %d of %s: %w", f.Addr.Port(), id, err)})
		return false
	}
	s.held[f] = struct{}{}
	s.end(a, f)
	return true
}

// begin remembers a conflict, and tells of it if it is new.
func (s *sockets) begin(a *Agent, f lb.Frontend, c conflict) {
	if s.conflicts[f].id != c.id {
		s.end(a, f)
		if a.Conflict != nil {
			a.Conflict(c.id, f, c.err)
		}
	}
	s.conflicts[f] = c
}

// end forgets a conflict, if there was one, and tells so.
func (s *sockets) end(a *Agent, f lb.Frontend) {
	c, ok := s.conflicts[f]
	if !ok {
		return
	}
	delete(s.conflicts, f)
	if a.Conflict != nil {
		a.Conflict(c.id, f, nil)
	}
}

// datagrams returns who serves a frontend that is not TCP's.
func (a *Agent) datagrams(f lb.Frontend) Datagrams {
	if f.Protocol == lb.SCTP {
		return a.SCTP
	}
	return a.UDP
}

// conflict returns the conflicts as one error, in a stable order.
func (s *sockets) conflict() error {
	all := make([]error, 0, len(s.conflicts))
	for _, c := range s.conflicts {
		all = append(all, c.err)
	}
	slices.SortFunc(all, func(a, b error) int {
		switch {
		case a.Error() < b.Error():
			return -1
		case a.Error() > b.Error():
			return 1
		}
		return 0
	})
	return errors.Join(all...)
}

// unwanted reports whether there are sockets that nothing is to be served on any more.
func (s *sockets) unwanted(wanted map[lb.Frontend]struct{}) bool {
	for _, open := range []iter.Seq[lb.Frontend]{maps.Keys(s.proxy), maps.Keys(s.held)} {
		for f := range open {
			if _, ok := wanted[f]; !ok {
				return true
			}
		}
	}
	return false
}

// closeUnwanted closes the sockets that nothing is to be served on any more.
func (a *Agent) closeUnwanted(wanted map[lb.Frontend]struct{}) {
	unwanted := func(f lb.Frontend) bool { _, ok := wanted[f]; return !ok }
	for f := range a.sockets.proxy {
		if unwanted(f) {
			a.datagrams(f).Unlisten(f)
			delete(a.sockets.proxy, f)
		}
	}
	for f := range a.sockets.held {
		if !unwanted(f) {
			continue
		}
		if f.Protocol == lb.TCP {
			a.TCP.Unlisten(f.Addr)
		} else {
			a.datagrams(f).Unlisten(f)
		}
		delete(a.sockets.held, f)
	}
	for f := range a.sockets.conflicts {
		if unwanted(f) {
			a.sockets.end(a, f)
		}
	}
}
