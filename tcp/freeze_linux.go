package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/counters"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
)

// Listening is an address that a Server listens on.
type Listening struct {
	Addr    netip.AddrPort
	Steered bool  // by ListenSteered
	FDs     []int // of its sockets, one for each loop
}

// Frozen is the whole state of one connection while nothing moves it.
type Frozen struct {
	// Offer is the number under which Server.Offer has shown it, 0 if it has not.
	Offer uint32

	Client, Backend int // descriptors; Backend is -1 while there is none

	Service lb.ID
	Addr    netip.AddrPort // of the backend; invalid while there is none

	ToBackend, ToClient Way
	Header              uint16 // how many of the bytes that wait for the backend are of a PROXY header

	Transparent bool // the backend sees the client's own address

	Dial *Dialling // nil once the backend has answered
	Kept session.Kept
}

// Way is one direction of a Frozen connection.
type Way struct {
	EOF     bool   // its source has ended its stream, and all of it has been read
	Shut    bool   // that has been passed on
	Waiting []byte // read and not written yet
}

// Dialling is what a Frozen connection has besides until its backend has answered.
type Dialling = session.Dialling

// Listening returns what the Server listens on, in a stable order. The descriptors stay the Server's, until the next
// Unlisten, Shutdown or Close.
func (s *Server) Listening() []Listening {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Listening
	for addr, l := range s.listeners {
		have := Listening{Addr: addr, Steered: l.steered}
		for _, socket := range l.sockets {
			have.FDs = append(have.FDs, socket.(*session.Listener[*conn]).FD)
		}
		out = append(out, have)
	}
	slices.SortFunc(out, func(a, b Listening) int { return a.Addr.Compare(b.Addr) })
	return out
}

// Offer passes to send, on a loop, up to most relaying connections that were not offered yet, while all of them go on.
// Only their Offer, descriptors, Service and Addr are set. It is to be called by one goroutine: the loops' offers are
// numbered together. If send returns an error, which Offer then returns, they count as not offered. offered is how many
// there were; fewer than most mean that the loop has no more.
func (s *Server) Offer(loop, most int, send func([]Frozen) error) (offered int, err error) {
	sh := s.shards[loop]
	doErr := sh.Loop.Do(func() { offered, err = sh.offer(most, send) })
	if doErr != nil {
		return 0, fmt.Errorf("offer connections: %w", doErr)
	}
	return offered, err
}

// Shards returns how many loops have connections to Offer.
func (s *Server) Shards() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.shards)
}

// offer looks from the end of the list, where new connections are, and moves those that it offers to the beginning.
func (sh *shard) offer(most int, send func([]Frozen) error) (int, error) {
	var batch []Frozen
	var conns []*conn
	for c := range sh.Backward() {
		if c.offer != 0 || len(batch) >= most {
			break
		}
		if c.Dialling() {
			continue // its backend may change; it is left for the end
		}
		c.Shared = true // also if send fails, which may have been half way
		conns = append(conns, c)
		batch = append(batch, Frozen{
			Offer:  sh.srv.offers + uint32(len(conns)),
			Client: c.client.FD(), Backend: c.backend.FD(),
			Service: c.Choice.Service(), Addr: c.Choice.Backend(),
		})
	}
	if len(batch) == 0 {
		return 0, nil
	}
	if err := send(batch); err != nil {
		return 0, err
	}
	for i, c := range conns {
		c.offer = batch[i].Offer
		c.settle()
		sh.leave(c)
		sh.MoveToFront(c)
	}
	sh.srv.offers += uint32(len(batch))
	return len(batch), nil
}

// Freeze passes every connection to visit, while the caller has halted the loops. The Frozen, and the bytes in it, are
// visit's until it returns. It stops at an error of visit and returns it. If the connections are to go on here after
// all, call Thaw and resume the loops.
func (s *Server) Freeze(visit func(*Frozen) error) error {
	for _, sh := range s.shards {
		sh.takeIn()
		for c := range sh.All() {
			f, err := c.freeze()
			if err != nil {
				return fmt.Errorf("freeze connection to %s: %w", c.Choice.Backend(), err)
			}
			if err := visit(&f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Thaw drops all offers, of halted loops as soon as they resume: the next Offer starts again.
func (s *Server) Thaw() {
	s.offers = 0
	for _, sh := range s.shards {
		_ = sh.Loop.Post(func() { // ErrClosed: then there is nothing to offer any more
			for c := range sh.All() {
				c.offer = 0
			}
		})
	}
}

func (c *conn) freeze() (Frozen, error) {
	kept := c.sh.FreezeKept(c)
	c.Shared = true
	c.settle()
	c.Meter.Flush(c.Choice)
	err := errors.Join(c.unpipe(&c.backend), c.unpipe(&c.client))
	return Frozen{
		Offer:  c.offer,
		Client: c.client.FD(), Backend: c.backend.FD(),
		Service: c.Choice.Service(), Addr: c.Choice.Backend(),
		ToBackend: freezeWay(&c.client, &c.backend), ToClient: freezeWay(&c.backend, &c.client),
		Header: c.backend.header, Transparent: c.transparent,
		Dial: c.sh.FreezeDial(c),
		Kept: kept,
	}, err
}

func freezeWay(from, to *side) Way {
	w := Way{EOF: from.EOF, Shut: to.Shut}
	if to.out != nil {
		w.Waiting = to.out.Bytes()
	}
	return w
}

// settle makes the kernel probe the backend of a connection that has shown by its age, or by being here when all is
// handed over, to have a long life.
func (c *conn) settle() {
	if !c.settled && c.backend.FD() >= 0 {
		_ = probe(c.backend.FD()) // it can fail only on what is no TCP socket
		c.probePolicies()
	}
	c.settled = true
}

// probePolicies sets what the Service requests of keep-alive probes, on both sockets.
func (c *conn) probePolicies() {
	if p := c.Choice.Policies(); p.Probes() {
		_ = errors.Join(probeAs(c.client.FD(), p), probeAs(c.backend.FD(), p)) // as probe
	}
}

// unpipe moves what waits in dst's pipe to a buffer. Never does anything wait in both.
func (c *conn) unpipe(dst *side) error {
	if dst.pipe == nil || dst.pipe.Len() == 0 {
		return nil
	}
	b, err := dst.pipe.Empty()
	dst.out = c.sh.Loop.Buffers.Adopt(b)
	return err
}

// AdoptListener starts accepting by sockets that another Server has listened with, which are this Server's from now on,
// whatever is returned. All go on, however many loops there are, since a socket that is closed loses the clients in its
// queue; loops without one get their own. After an error the address is served by those that could be had, if any; the
// others are closed, as the kernel would lead clients to them.
func (s *Server) AdoptListener(l Listening) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	if s.closed {
		for _, fd := range l.FDs {
			_ = unix.Close(fd)
		}
		return ErrServerClosed
	}
	served, sockets := listening{steered: l.Steered}, max(len(l.FDs), len(s.shards))
	if !l.Steered {
		s.Descriptors.Listening(int64(len(l.FDs)))
		if more := sockets - len(l.FDs); more > 0 && !s.Descriptors.Widen(int64(more)) {
			sockets = len(l.FDs)
		}
	}
	defer func() {
		if !l.Steered {
			s.Descriptors.Listening(int64(len(served.sockets) - sockets)) // those that could not be had
		}
	}()
	var errs []error
	first := s.next
	s.next += sockets
	for i := range sockets {
		fd, err := -1, error(nil)
		if i < len(l.FDs) {
			fd = l.FDs[i]
		} else if fd, err = bindOne(l.Addr, false); err != nil {
			errs = append(errs, err)
			break
		}
		socket := s.shards[(first+i)%len(s.shards)].newListener(fd, l.Steered)
		if err := socket.Start(); err != nil {
			errs = append(errs, err)
			socket.Close()
			continue
		}
		served.sockets = append(served.sockets, socket)
	}
	if len(served.sockets) > 0 {
		s.add(l.Addr, served)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take over listener %s: %w", l.Addr, err)
	}
	return nil
}

// Adopt takes over connections that another Server has frozen, with their descriptors and bytes. The loops share them
// evenly. thawed is called on a loop for each that moves again. One that cannot be watched is reset, and counted in
// Stats.Shortages.
func (s *Server) Adopt(conns []Frozen, thawed func()) error {
	s.mu.Lock()
	s.start()
	s.mu.Unlock()
	ours := session.NewSources(s.OriginalDst)
	for i := range conns {
		if !conns[i].Transparent { // else its address is the client's
			ours.Add(conns[i].Backend, conns[i].Addr)
		}
	}
	return s.Loops.Each(func(i int) {
		for j := i; j < len(conns); j += len(s.shards) {
			s.shards[i].thaw(&conns[j], ours)
			thawed()
		}
	})
}

// thaw makes a connection of f.
func (sh *shard) thaw(f *Frozen, ours *session.Sources) {
	c := sh.newConn(f.Client, f.Backend)
	c.settled, c.watched = true, true // by the process before, and by Thaw
	c.backend.packs, c.backend.sent = true, f.Dial == nil
	c.backend.header = f.Header
	c.appear(f.Transparent)
	sh.thawWay(&f.ToBackend, &c.client, &c.backend)
	sh.thawWay(&f.ToClient, &c.backend, &c.client)
	if len(f.ToClient.Waiting) > 0 {
		c.HasSpoken()
	}
	sh.Thaw(c, f.Service, f.Addr, f.Dial, f.Kept, [...]eventloop.Handler{&c.client, &c.backend}, ours)
}

func (sh *shard) thawWay(w *Way, from, to *side) {
	from.EOF, to.Shut = w.EOF, w.Shut
	if len(w.Waiting) > 0 {
		to.out = sh.Loop.Buffers.Adopt(w.Waiting)
	}
}

// Restore adds the counters of another Server to this one's. Gauges are left out: each connection brings its own.
func (s *Server) Restore(from Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	counters.Restore(&s.shards[0].count.stats, &from)
}
