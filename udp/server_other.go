//go:build !linux

package udp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

type state struct{}

// Listen reports errors.ErrUnsupported: the relay needs epoll.
func (s *Server) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	return netip.AddrPort{}, fmt.Errorf("listen on UDP %s for %s: %w on this platform", addr, f, errors.ErrUnsupported)
}

// Unlisten does nothing.
func (s *Server) Unlisten(lb.Frontend) {}

// TableChanged does nothing.
func (s *Server) TableChanged() {}

// Shutdown does nothing.
func (s *Server) Shutdown(context.Context) error { return nil }

// Close does nothing.
func (s *Server) Close() {}

// Stats returns zero counters.
func (s *Server) Stats() Stats { return Stats{} }
