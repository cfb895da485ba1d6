//go:build !linux

package sctp

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

// Listen reports errors.ErrUnsupported: there is neither SCTP nor a way to see its
// packets here.
func (s *Server) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	if s.closed.Load() {
		return netip.AddrPort{}, ErrServerClosed
	}
	return netip.AddrPort{}, fmt.Errorf("listen on SCTP %s for %s: %w on this platform", addr, f, errors.ErrUnsupported)
}

// Choose reports errors.ErrUnsupported.
func (s *Server) Choose() error {
	return fmt.Errorf("forward SCTP: %w on this platform", errors.ErrUnsupported)
}

// InUse returns Auto: no engine was chosen.
func (s *Server) InUse() (Engine, string) { return Auto, "" }

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
