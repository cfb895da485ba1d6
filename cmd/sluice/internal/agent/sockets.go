package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// sockets are those that the agent has had opened: proxy ports of UDP frontends,
// and node ports, which are held by the very sockets that serve them.
type sockets struct {
	proxy     map[lb.Frontend]uint16   // proxy ports of steered UDP frontends
	held      map[lb.Frontend]struct{} // node ports; their address is where they listen
	conflicts map[lb.Frontend]error    // node ports that could not be had
}

func (s *sockets) init() {
	s.proxy = make(map[lb.Frontend]uint16)
	s.held = make(map[lb.Frontend]struct{})
	s.conflicts = make(map[lb.Frontend]error)
}

// steered returns the proxy port of a UDP frontend, opening it if need be.
func (s *sockets) steered(a *Agent, f lb.Frontend) (uint16, error) {
	if port, ok := s.proxy[f]; ok {
		return port, nil
	}
	if _, ok := s.held[f]; ok { // a node port until now, and a frontend has one socket
		a.UDP.Unlisten(f)
		delete(s.held, f)
	}
	var got netip.AddrPort
	_, err := a.Ports.Claim(func(port uint16) (err error) {
		got, err = a.UDP.Listen(f, netip.AddrPortFrom(a.family(f.Addr.Addr().Is6()).Bind, port))
		return err
	})
	if err != nil {
		return 0, err
	}
	s.proxy[f] = got.Port()
	return got.Port(), nil
}

// hold opens a node port unless it is open, and reports whether it is. That somebody else has it is remembered
// as a conflict and touches nothing else; it is tried again with every Apply.
func (s *sockets) hold(a *Agent, f lb.Frontend, id lb.ID) bool {
	if _, ok := s.held[f]; ok {
		return true
	}
	if _, ok := s.proxy[f]; ok { // steered until now
		a.UDP.Unlisten(f)
		delete(s.proxy, f)
	}
	var err error
	if f.Protocol == lb.TCP {
		_, err = a.TCP.Listen(f.Addr)
	} else {
		_, err = a.UDP.Listen(f, f.Addr)
	}
	if err != nil {
		s.conflicts[f] = fmt.Errorf("hold node port %d of %s: %w", f.Addr.Port(), id, err)
		return false
	}
	s.held[f] = struct{}{}
	delete(s.conflicts, f)
	return true
}

// conflict returns the conflicts as one error, in a stable order.
func (s *sockets) conflict() error {
	all := make([]error, 0, len(s.conflicts))
	for _, err := range s.conflicts {
		all = append(all, err)
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

// closeUnwanted closes the sockets that nothing is to be served on any more.
func (a *Agent) closeUnwanted(wanted map[lb.Frontend]struct{}) {
	unwanted := func(f lb.Frontend) bool { _, ok := wanted[f]; return !ok }
	for f := range a.sockets.proxy {
		if unwanted(f) {
			a.UDP.Unlisten(f)
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
			a.UDP.Unlisten(f)
		}
		delete(a.sockets.held, f)
	}
	for f := range a.sockets.conflicts {
		if unwanted(f) {
			delete(a.sockets.conflicts, f)
		}
	}
}
