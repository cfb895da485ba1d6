//go:build !linux

package tcp

import (
	"context"
	"net/netip"
)

// state is what a Server has on this platform.
type state struct{ fallback goroutineServer }

// Listen starts accepting on addr, which is what clients ask for: the frontend of
// a connection is the local address of its socket. It returns the address in use:
// port 0 lets the system choose.
func (s *Server) Listen(addr netip.AddrPort) (netip.AddrPort, error) {
	return s.fallback.listen(s, addr, false)
}

// ListenSteered is Listen for an address that traffic for any frontends is steered
// to: Server.OriginalDst says what the client of a connection asked for.
func (s *Server) ListenSteered(addr netip.AddrPort) (netip.AddrPort, error) {
	return s.fallback.listen(s, addr, true)
}

// Unlisten stops accepting on an address that Listen returned. Established
// connections go on. Unknown addresses are ignored.
func (s *Server) Unlisten(addr netip.AddrPort) { s.fallback.unlisten(addr) }

// Shutdown stops accepting and waits until every connection has ended. When ctx
// ends first, the rest is reset, and the error says how many they were.
func (s *Server) Shutdown(ctx context.Context) error { return s.fallback.shutdown(ctx) }

// Close stops accepting and resets every connection. It may be called more than
// once, also while Shutdown waits.
func (s *Server) Close() { s.fallback.close() }

// Stats returns the counters.
func (s *Server) Stats() Stats { return s.fallback.stats() }

// Steered returns the addresses of ListenSteered, in no order.
func (s *Server) Steered() []netip.AddrPort { return s.fallback.steered() }
