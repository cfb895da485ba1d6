//go:build !linux

package udp

import (
	"context"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// state is what a Server has on this platform.
type state struct{ plain goroutines }

// Listen starts forwarding for f what arrives at addr, and returns the address in use:
// port 0 lets the system choose. The family of addr is that of f's clients and
// backends. A frontend is listened for once at a time.
func (s *Server) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	return s.plain.listen(s, f, addr)
}

// Unlisten closes the socket and flows of a frontend. One that is not listened for is
// ignored.
func (s *Server) Unlisten(f lb.Frontend) { s.plain.unlisten(f) }

// TableChanged has every flow leave a backend that is neither ready nor serving in
// the balancer's current table, or is no longer that of the frontend's Service. Flows
// whose clients send do so by themselves; this is for those that only receive. Call it
// after lb.Balancer.Update.
func (s *Server) TableChanged() { s.plain.tableChanged(s) }

// Shutdown refuses new clients and waits until every flow is idle. When ctx ends
// first, the rest is cut off and the error says how many they were. In any case
// the Server is closed in the end.
func (s *Server) Shutdown(ctx context.Context) error { return s.plain.shutdown(ctx) }

// Close closes every socket and flow. It may be called more than once, also while
// Shutdown waits, which then returns.
func (s *Server) Close() { s.plain.close() }

// Stats returns the counters.
func (s *Server) Stats() Stats { return s.plain.count.snapshot() }
