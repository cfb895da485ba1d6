package sctp

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-lb/sluice/sctp/engine"
)

// Holding is what one Server passes to another one in a hand-over besides its associations.
type Holding = engine.Holding

// Frozen is the whole state of an association while nothing moves it.
type Frozen = engine.Frozen

// Holding returns what the Server has, in a stable order. The descriptors stay the Server's, until the next call that
// changes what it listens on.
func (s *Server) Holding() Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := Holding{Engine: s.chosen, Why: s.why}
	if s.engine != nil {
		s.engine.Hold(&h)
	}
	slices.SortFunc(h.Listening, func(a, b engine.Listening) int {
		return cmp.Or(a.Frontend.Addr.Compare(b.Frontend.Addr), a.Addr.Compare(b.Addr))
	})
	return h
}

// Freeze passes every association to visit, while the caller has halted the loops. The Frozen, and the bytes in it, are
// visit's until it returns. It stops at an error of visit and returns it. Resumed loops go on as before.
func (s *Server) Freeze(visit func(*Frozen) error) (err error) {
	s.use(func(e engine.Engine) { err = e.Freeze(visit) })
	return err
}

// CanAdopt reports why this Server could not go on with what another one has.
func (s *Server) CanAdopt(h *Holding) error {
	switch {
	case h.Engine == Auto:
		return nil
	case h.Engine != Socket && h.Engine != Packet, (h.Shares == 0) != (h.Engine == Socket),
		h.Shares < 0, h.Shares > maxShares:
		return fmt.Errorf("SCTP is forwarded by engine %d in %d shares, which is not supported", h.Engine, h.Shares)
	case s.Engine == Auto || s.Engine == h.Engine:
		return nil
	}
	return fmt.Errorf("SCTP is forwarded by the %s engine (%s), and associations cannot change to the %s engine: "+
		"stop the running process first, which ends them, or do not force an engine", h.Engine, h.Why, s.Engine)
}

// Adopt takes over what another Server has held and frozen, with the associations in the order of Freeze, before this
// one has listened. The descriptors are this Server's from now on. thawed is called on a loop for each association
// that moves again. Those that cannot be watched are aborted, and counted in Stats.Shortages; the error names
// frontends that are not served.
func (s *Server) Adopt(h Holding, assocs []Frozen, thawed func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.Engine == Auto {
		return nil
	}
	if s.closed {
		return ErrServerClosed
	}
	why := h.Why
	if s.Engine != Auto && s.why != "" {
		why = s.why
	}
	s.run(h.Engine, why, h.Shares)
	if err := s.engine.Adopt(&h, assocs, thawed); err != nil {
		return fmt.Errorf("take over SCTP: %w", err)
	}
	return nil
}

// Restore adds the counters of another Server to this one's, after Adopt. Gauges are left out: each association brings
// its own.
func (s *Server) Restore(from Stats) {
	s.use(func(e engine.Engine) { e.Parts()[0].Count.Restore(from) })
}
