//go:build !linux

package udp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// state is what a Server has on this platform.
type state struct{ closed atomic.Bool }

// Listen reports errors.ErrUnsupported: the relay needs epoll.
func (s *Server) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	if s.closed.Load() {
		return netip.AddrPort{}, ErrServerClosed
	}
	return netip.AddrPort{}, fmt.Errorf("listen on UDP %s for %s: %w on this platform", addr, f, errors.ErrUnsupported)
}

// Unlisten does nothing.
func (s *Server) Unlisten(lb.Frontend) {}

// TableChanged does nothing.
func (s *Server) TableChanged() {}

// Shutdown closes the Server, which has nothing to drain.
func (s *Server) Shutdown(context.Context) error { s.Close(); return nil }

// Close has every later Listen return ErrServerClosed.
func (s *Server) Close() { s.closed.Store(true) }

// Stats returns zero counters.
func (s *Server) Stats() Stats { return Stats{} }
