//go:build !linux

package tcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

type state struct{}

// Listen reports errors.ErrUnsupported: the relay needs epoll.
func (s *Server) Listen(addr netip.AddrPort) (netip.AddrPort, error) {
	return netip.AddrPort{}, fmt.Errorf("listen on TCP %s: %w on this platform", addr, errors.ErrUnsupported)
}

// ListenSteered reports errors.ErrUnsupported, as Listen does.
func (s *Server) ListenSteered(addr netip.AddrPort) (netip.AddrPort, error) { return s.Listen(addr) }

// Unlisten does nothing.
func (s *Server) Unlisten(netip.AddrPort) {}

// Shutdown does nothing.
func (s *Server) Shutdown(context.Context) error { return nil }

// Close does nothing.
func (s *Server) Close() {}

// Stats returns zero counters.
func (s *Server) Stats() Stats { return Stats{} }
