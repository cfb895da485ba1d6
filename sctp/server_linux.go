package sctp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/kernel"
	"github.com/sluice-lb/sluice/sctp/packet"
	"github.com/sluice-lb/sluice/sctp/socket"
)

// state is what a Server has on this platform.
type state struct {
	mu     sync.Mutex // guards the following
	closed bool
	engine engine.Engine // nil before the first use
	chosen Engine
	why    string
}

// Listen starts forwarding for f what arrives at addr, and returns the address in
// use: port 0 has one chosen. The family of addr is that of f's clients and
// backends; the unspecified address stands for all of the host. An error wraps
// unix.EADDRINUSE if the port is in use already, as far as the engine can see, and
// unix.EPERM if raw sockets are needed and not allowed (CAP_NET_RAW); a frontend
// is listened for once at a time.
func (s *Server) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return netip.AddrPort{}, ErrServerClosed
	}
	if err := s.start(); err != nil {
		return netip.AddrPort{}, err
	}
	got, err := s.engine.Listen(f, addr)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listen on SCTP %s for %s: %w", addr, f, err)
	}
	return got, nil
}

// Choose selects an engine, if that has not been done. The error says why the
// one that is forced cannot be used.
func (s *Server) Choose() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start()
}

// InUse returns the engine that was chosen, and why; Auto before.
func (s *Server) InUse() (engine Engine, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chosen, s.why
}

// start makes the engine at the first use. The caller holds s.mu.
func (s *Server) start() error {
	if s.engine != nil {
		return nil
	}
	chosen, why, err := choose(s.Engine)
	if err != nil {
		return err
	}
	s.chosen, s.why = chosen, why
	if chosen == Socket {
		s.engine = socket.New(s.Config)
	} else {
		s.engine = packet.New(s.Config, 0)
	}
	if s.OnEngine != nil {
		s.OnEngine(chosen, why)
	}
	return nil
}

// choose selects an engine and says why.
func choose(want Engine) (Engine, string, error) {
	if want == Packet {
		// Not by opening a socket, for which the kernel would load its module.
		if _, err := os.Stat("/proc/net/sctp"); err == nil {
			return Packet, "", errors.New("use raw sockets for SCTP: the kernel has SCTP itself and aborts associations that are not its own: use sockets, or unload the module sctp")
		}
		return Packet, "forced", nil
	}
	switch missing := kernel.Missing(); {
	case missing == nil && want == Auto:
		return Socket, "the kernel has SCTP", nil
	case missing == nil:
		return Socket, "forced", nil
	case want == Auto:
		return Packet, fmt.Sprintf("the kernel has no SCTP (%v)", missing), nil
	default:
		return Socket, "", fmt.Errorf("use SCTP sockets: the kernel has no SCTP: %w", missing)
	}
}

// Unlisten takes no more associations for a frontend. Those that there are go on.
// A frontend that is not listened for is ignored.
func (s *Server) Unlisten(f lb.Frontend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine != nil {
		s.engine.Unlisten(f)
	}
}

// TableChanged makes every association whose backend has not answered yet leave it
// if it is neither ready nor serving in the balancer's current table. Call it after
// lb.Balancer.Update; it does not wait.
func (s *Server) TableChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine != nil && !s.closed {
		s.engine.TableChanged()
	}
}

// Shutdown takes no new associations and waits until every one has ended. When ctx
// ends first, the rest is aborted, and the error says how many they were. In any
// case the Server is closed in the end.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	e := s.engine
	if e == nil || was {
		s.mu.Unlock()
		return nil
	}
	err := e.Drain()
	s.mu.Unlock()
	defer s.Close()
	if err != nil {
		return fmt.Errorf("drain associations: %w", err)
	}
	if err := e.Drained(ctx); err != nil {
		return fmt.Errorf("drain associations: %d aborted: %w", s.Stats().Active, err)
	}
	return nil
}

// Close aborts every association and closes every socket. It may be called more
// than once, also while Shutdown waits, which then returns.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.engine != nil {
		s.engine.Close()
	}
}

// Stats returns the sum over all loops.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return Stats{}
	}
	return s.engine.Stats()
}
