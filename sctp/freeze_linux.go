package sctp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// Holding is what a Server has besides its associations.
type Holding struct {
	Engine Engine // Auto: none was chosen yet, and there is nothing
	Why    string // as InUse tells

	// Shares is into how many parts the packet engine has divided all packets, by
	// filters of its sockets; 0 for the socket engine.
	Shares int
	Raw    []Raw

	Listening []Listening
}

// Raw is a raw socket of the packet engine.
type Raw struct {
	Share int // from 0
	IPv6  bool
	FD    int `json:"-"`
}

// Listening is a frontend that a Server forwards.
type Listening struct {
	Frontend lb.Frontend
	Addr     netip.AddrPort // as asked for, with the port in use
	Doors    []Door         // none with the packet engine
}

// Door is a listening socket of the socket engine.
type Door struct {
	Addr netip.Addr
	FD   int `json:"-"`
}

// FDs passes every descriptor to visit, which may change it, in an order that depends
// on nothing else.
func (h *Holding) FDs(visit func(fd *int)) {
	for i := range h.Raw {
		visit(&h.Raw[i].FD)
	}
	for i := range h.Listening {
		for j := range h.Listening[i].Doors {
			visit(&h.Listening[i].Doors[j].FD)
		}
	}
}

// Frozen is all there is to know of one association while nothing moves it: one of
// Packets and Sockets is set, by the engine.
type Frozen struct {
	Service lb.ID
	Addr    netip.AddrPort // of the backend; invalid while there is none
	Idle    time.Duration  // since it last passed something
	Left    time.Duration  // of what it waits for, or of the present attempt

	Dial    *Dialling // nil once the backend has answered
	Packets *Packets
	Sockets *Sockets
}

// Dialling is what a Frozen association has besides until its backend has answered.
type Dialling struct {
	Frontend lb.Frontend
	Client   netip.Addr
	Tried    []netip.AddrPort // backends that have failed
	Attempt  int              // attempts that have ended

	Init []byte // packet engine: the client's last INIT, without ports

	Shortages int    // socket engine: waits for local resources so far
	In, Out   uint16 // socket engine: streams of the client's association
}

// Packets is an association of the packet engine.
type Packets struct {
	Client, Backend Leg // Backend is zero while there is none

	Tags    Tags   // in force
	Asked   uint32 // initiate tag of the client's last INIT
	Waiting time.Duration
	Offered []Tags // of INIT ACKs
	Next    int    // where the next one goes
	Echoed  Tags

	Phase   int
	Counted bool // as established
}

// Leg is one side of an association of the packet engine.
type Leg struct {
	Peer, Local netip.AddrPort
	Scope       uint32 // interface of a link-local peer
}

// Sockets is an association of the socket engine.
type Sockets struct {
	Client, Backend     int // descriptors; Backend is -1 while there is none
	ToBackend, ToClient Way
}

// Way is one direction of an association of the socket engine.
type Way struct {
	EOF     bool   // its source has shut down, and all of it has been read
	Shut    bool   // that has been passed on
	Partial []byte // what has come of a message so far
	Whole   []byte // a message that could not be sent yet, and what stays with it
	Stream  uint16
	Flags   uint16
	PPID    uint32
}

// Holding returns what the Server has, in a stable order. The descriptors stay the
// Server's; they may be used until the next Listen, Unlisten, TableChanged, Shutdown or
// Close.
func (s *Server) Holding() Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := Holding{Engine: s.chosen, Why: s.why}
	if s.engine == nil {
		return h
	}
	s.engine.hold(&h)
	slices.SortFunc(h.Listening, func(a, b Listening) int {
		return cmp.Or(a.Frontend.Addr.Compare(b.Frontend.Addr), a.Addr.Compare(b.Addr))
	})
	return h
}

// Freeze passes every association to visit, while the caller has halted the loops. The
// Frozen, and the bytes in it, are visit's until it returns. It stops at an error of
// visit and returns it. If the associations are to go on here after all, it suffices
// that the loops resume.
func (s *Server) Freeze(visit func(*Frozen) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return nil
	}
	return s.engine.freeze(visit)
}

// CanAdopt reports why this Server could not go on with what another one has.
func (s *Server) CanAdopt(h *Holding) error {
	switch {
	case h.Engine == Auto:
		return nil
	case h.Engine != Socket && h.Engine != Packet, (h.Shares == 0) != (h.Engine == Socket), h.Shares < 0, h.Shares > maxShards:
		return fmt.Errorf("SCTP is forwarded by engine %d in %d shares, of which nothing is known here", h.Engine, h.Shares)
	case s.Engine == Auto || s.Engine == h.Engine:
		return nil
	}
	return fmt.Errorf("SCTP is forwarded by the %s engine (%s), and associations cannot change to the %s engine: "+
		"stop the running process first, which ends them, or do not force an engine", h.Engine, h.Why, s.Engine)
}

// Opens returns how many descriptors Adopt opens at most, besides those that are given: a
// socket for each family of a share, to ask for routes.
func (h *Holding) Opens() int { return 2 * h.Shares }

// Adopt takes over what another Server has held and frozen, of whose associations
// those of the packet engine are in the order of Freeze. It is for the start: the Server
// must not have listened yet. The descriptors are this Server's from now on. thawed is
// called on a loop for each association that moves again. Those that cannot be
// watched are aborted, and counted in Stats.Shortages; the error tells of frontends
// that are not served.
func (s *Server) Adopt(h Holding, assocs []Frozen, thawed func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.Engine == Auto {
		return nil
	}
	if s.closed {
		return ErrServerClosed
	}
	s.chosen = h.Engine
	if s.Engine == Auto || s.why == "" {
		s.why = h.Why
	}
	if h.Engine == Socket {
		s.engine = newSockets(s)
	} else {
		s.engine = newPackets(s, h.Shares)
	}
	if s.OnEngine != nil {
		s.OnEngine(s.chosen, s.why)
	}
	if err := s.engine.adopt(&h, assocs, thawed); err != nil {
		return fmt.Errorf("take over SCTP: %w", err)
	}
	return nil
}

// Restore adds the counters of another Server to this one's, after Adopt, so that they
// go on where those have stopped. Gauges are left out: each association brings its
// own.
func (s *Server) Restore(from Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return
	}
	from.Active, from.Dialling = 0, 0
	s.engine.restore(from)
}

// resume makes a choice that another balancer has made, if it had made one.
func (s *Server) resume(f *Frozen) (c lb.Choice) {
	if f.Addr.IsValid() {
		c = s.LB.Resume(f.Service, f.Addr)
	}
	return c
}

// resumeFlow returns what a dial goes on with.
func (s *Server) resumeFlow(f *Frozen, now int64) (lb.Flow, lb.Tried) {
	from := f.Dial
	id := f.Service
	if owner, _, ok := s.LB.Table().Lookup(from.Frontend); ok && !f.Addr.IsValid() {
		id = owner.ID
	}
	return lb.Flow{Frontend: from.Frontend, Client: from.Client, Now: now}, s.LB.ResumeTried(id, from.Tried)
}
