//go:build !linux

package tcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
)

// state is what a Server has on this platform.
type state struct{ closed atomic.Bool }

// Listen reports errors.ErrUnsupported: the relay needs epoll.
func (s *Server) Listen(addr netip.AddrPort) (netip.AddrPort, error) {
	if s.closed.Load() {
		return netip.AddrPort{}, ErrServerClosed
	}
	return netip.AddrPort{}, fmt.Errorf("listen on TCP %s: %w on this platform", addr, errors.ErrUnsupported)
}

// ListenSteered reports errors.ErrUnsupported, as Listen does.
func (s *Server) ListenSteered(addr netip.AddrPort) (netip.AddrPort, error) { return s.Listen(addr) }

// Unlisten does nothing.
func (s *Server) Unlisten(netip.AddrPort) {}

// Shutdown closes the Server, which has nothing to drain.
func (s *Server) Shutdown(context.Context) error { s.Close(); return nil }

// Close has every later Listen return ErrServerClosed.
func (s *Server) Close() { s.closed.Store(true) }

// Stats returns zero counters.
func (s *Server) Stats() Stats { return Stats{} }
