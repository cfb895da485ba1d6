package udp

import (
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// Move listens for f at another address than before. The sockets before, and their flows, go on until Leave. Errors are
// as those of Listen, and change nothing.
//
// The flows cannot be moved one by one, since the kernel may assign a client to another loop at another port.
func (s *Server) Move(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(f)
	before := s.listeners[f]
	delete(s.listeners, f)
	got, err := s.listenAt(f, addr)
	if err != nil {
		s.listeners[f] = before
		return got, err
	}
	s.moved[f] = before
	return got, nil
}

// Leave is for when what comes anew for a frontend that was moved arrives at the new address. Flows at the address
// before are closed, and their clients go on from the new one. They keep the backend that they had, which sees another
// port; with an IdleTimeout they are like anyone else. What comes to the address before meanwhile is neither answered
// nor refused.
func (s *Server) Leave(f lb.Frontend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ln := range s.moved[f] {
		ln.shard.io.leave(ln)
	}
}

// Settle closes the sockets at the address before, where nothing arrives any more, if the frontend was moved.
func (s *Server) Settle(f lb.Frontend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(f)
}

// Flows returns how many flows a frontend has.
func (s *Server) Flows(f lb.Frontend) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ln := range s.listeners[f] {
		_ = ln.shard.io.do(func() { n += ln.own.len }) // fails for a loop that has ended, with its flows
	}
	return n
}

// settle is Settle for a caller who holds s.mu.
func (s *Server) settle(f lb.Frontend) {
	s.stop(s.moved[f])
	delete(s.moved, f)
}
