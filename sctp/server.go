package sctp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"

	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/engine"
)

// ErrServerClosed is returned by Listen after Shutdown or Close.
var ErrServerClosed = errors.New("sctp server is closed")

// Engine is a way to forward SCTP.
type Engine = engine.Kind

// The engines; Auto chooses.
const (
	Auto   = engine.Auto
	Socket = engine.Socket
	Packet = engine.Packet
)

// Config is what holds for both engines.
type Config = engine.Config

// Stats is a snapshot of the counters of both engines.
type Stats = engine.Stats

// Ports of frontends that ask for any: below those towards backends, and those of node ports.
const firstChosen, chosenPorts = 16384, 13616

// Server forwards the associations of any number of frontends. Its exported fields are set before the first call and
// not changed afterwards. All methods may be called from any goroutine except those of Loops.
type Server struct {
	Config

	// Engine forces one. It is read by the first Listen or Choose.
	Engine Engine

	// OnEngine is called once with the engine in use, and why. nil: no call.
	OnEngine func(engine Engine, why string)

	mu     sync.Mutex // guards the following
	closed bool
	engine engine.Engine // nil before the first use
	chosen Engine
	why    string
}

// Listen starts forwarding for f what arrives at addr, of the family of f's clients and backends, and returns the
// address in use: port 0 has one chosen, and the unspecified address stands for all of the host. An error wraps
// unix.EADDRINUSE if the port is in use already, as far as the engine can see, and unix.EPERM if raw sockets are
// needed and not allowed (CAP_NET_RAW); a frontend is listened for once at a time.
func (s *Server) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return netip.AddrPort{}, ErrServerClosed
	}
	if err := s.start(); err != nil {
		return netip.AddrPort{}, err
	}
	got, err := s.listen(f, addr)
	if err != nil {
		err = fmt.Errorf("listen on SCTP %s for %s: %w", addr, f, err)
	}
	return got, err
}

// listen listens at addr: for port 0 at the first one that is free, from a random one on. The caller holds s.mu.
func (s *Server) listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	if addr.Port() != 0 {
		return addr, s.engine.Listen(f, addr)
	}
	first := rand.IntN(chosenPorts)
	for i := range chosenPorts {
		addr = netip.AddrPortFrom(addr.Addr(), uint16(firstChosen+(first+i)%chosenPorts))
		if err := s.engine.Listen(f, addr); !errors.Is(err, syscall.EADDRINUSE) {
			return addr, err
		}
	}
	return addr, syscall.EADDRINUSE
}

// Choose selects an engine, if that has not been done. The error says why the one that is forced cannot be used.
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
	if err == nil {
		s.run(chosen, why, 0)
	}
	return err
}

// run makes the engine. The caller holds s.mu.
func (s *Server) run(chosen Engine, why string, shares int) {
	s.chosen, s.why = chosen, why
	s.engine = newEngine(chosen, s.Config, shares)
	if s.OnEngine != nil {
		s.OnEngine(chosen, why)
	}
}

// use calls do with the engine, if there is one.
func (s *Server) use(do func(engine.Engine)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine != nil {
		do(s.engine)
	}
}

// Unlisten takes no more associations for a frontend, if it is listened for. Those that there are go on.
func (s *Server) Unlisten(f lb.Frontend) { s.use(func(e engine.Engine) { e.Unlisten(f) }) }

// TableChanged makes every association whose backend has not answered yet leave it if it is neither ready nor serving
// in the balancer's current table. Call it after balancer.Balancer.Update; it does not wait.
func (s *Server) TableChanged() {
	s.use(func(e engine.Engine) {
		if !s.closed {
			e.TableChanged()
		}
	})
}

// Shutdown takes no new associations, waits until every one has ended, and closes the Server. When ctx ends first, the
// rest is aborted, and the error says how many they were.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	if s.engine == nil || was {
		s.mu.Unlock()
		return nil
	}
	s.engine.StopListening()
	parts := s.engine.Parts()
	s.mu.Unlock()
	defer s.Close()
	for _, p := range parts {
		if err := p.Do(p.Start); err != nil {
			return fmt.Errorf("drain associations: %w", err)
		}
	}
	for _, p := range parts {
		if err := p.Drain.Wait(ctx); err != nil {
			return fmt.Errorf("drain associations: %d aborted: %w", s.Stats().Active, err)
		}
	}
	return nil
}

// Close aborts every association and closes every socket. It may be called more than once, also while Shutdown waits.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.use(func(e engine.Engine) {
		e.StopListening()
		for _, p := range e.Parts() {
			_ = p.Do(p.Stop) // fails for a loop that has stopped
		}
	})
}

// Look passes to visit associations of a loop that are looked for, from a position on, and returns the one to go on
// with, look.End if there are no more. It keeps the loop for look.Budget at the most. One may be missed, or come twice,
// with the packet engine if others end meanwhile.
func (s *Server) Look(loop, from int, q *look.Query, visit func(look.Info) (more bool)) (next int, err error) {
	next = look.End
	var parts []engine.Part
	s.use(func(e engine.Engine) { parts = e.Parts() })
	if loop < len(parts) {
		p := parts[loop]
		err = p.Do(func() { next = p.Look(from, q, visit) })
	}
	return next, err
}

// Stats returns the sum over all loops.
func (s *Server) Stats() (sum Stats) {
	s.use(func(e engine.Engine) {
		for _, p := range e.Parts() {
			p.Count.AddTo(&sum)
		}
	})
	return sum
}
