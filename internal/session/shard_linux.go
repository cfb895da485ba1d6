package session

import (
	"iter"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// Shard is the part of a server that lives on one loop, with connections C. Its methods run on the loop.
type Shard[C Owner[C]] struct {
	*Config
	Loop  *eventloop.Loop
	Count *Counters
	Drain eventloop.Drain

	ClientResets, BackendResets *atomic.Uint64 // connections that ended by an error on that side

	first, last C // of the list of connections
	listeners   map[*Listener[C]]struct{}
	retry       eventloop.Timer // runs while accepting is paused
	free        []*dial[C]
	ended       []C                            // to be made new ones of
	noPorts     map[netip.AddrPort]*noPorts[C] // backends towards which no port is free
	claims      Claims
	rota        rota[*dial[C]]
	dials       queue[*dial[C]] // those in flight or ready, the oldest first
	held        queue[*dial[C]] // those that wait since there is no backend
	waking      atomic.Bool     // wake is posted, and has not begun
	pending     []*Listener[C]  // those that may have a client to accept
	late        bool            // the loop is to serve the shard at the end of the turn
	walk        walk[C]
	notes       map[C]*note // of connections that are logged when they end
	freeNotes   []*note
	sample      look.Sample // of those
	inserted    int64       // when Insert was called last
	ending      lb.End      // why the connection ends that does so next
}

// Init makes the Shard ready. The counters for resets are the caller's to set.
func (sh *Shard[C]) Init(config *Config, loop *eventloop.Loop, count *Counters) {
	sh.Config, sh.Loop, sh.Count = config, loop, count
	sh.listeners = make(map[*Listener[C]]struct{})
	sh.claims = NewClaims(config.Shares, config.LB, loop.Index())
	sh.walk.sh = sh
	if config.LB != nil {
		config.LB.OnWatch(sh.watchSoon)
	}
}

// Admit claims what a new connection of a client to a frontend takes: of an accepted client's socket, which it resets
// and closes if the client is refused. Then it gives its descriptors back, and returns false.
func (sh *Shard[C]) Admit(fd int, frontend lb.Frontend, client netip.Addr) (Claim, bool) {
	free := sh.Room(len(sh.Loops.Loops()), sh.Count.Dialling.Load())
	c, ok := sh.claims.Admit(frontend, client, free, sh.Count)
	if !ok {
		sh.LB.Ended(frontend, sh.claims.Refused)
		if sh.Log != nil {
			sh.logRefused(fd, frontend)
		}
		sh.Refuse(fd)
	}
	return c, ok
}

// Refuse resets an accepted client, and gives its descriptors back.
func (sh *Shard[C]) Refuse(fd int) {
	socket.ResetOnClose(fd)
	_ = unix.Close(fd)
	sh.Descriptors.Give(2)
}

// Insert puts a new connection at the end of the list. Two descriptors, and a claim, are its own from now on.
func (sh *Shard[C]) Insert(c C, claim Claim) {
	conn := c.Base()
	sh.inserted = eventloop.Now()
	conn.Claim, conn.born = claim, look.At(sh.inserted)
	sh.Count.Active.Add(1)
	sh.join(sh.last, c)
	sh.last = c
}

// Reuse returns a connection that has ended, for a new one to be made of it; none: there is none. It is not to be
// called while an event is handled, whose connection may have ended just now.
func (sh *Shard[C]) Reuse() (c C) {
	if n := len(sh.ended); n > 0 {
		c, sh.ended = sh.ended[n-1], sh.ended[:n-1]
	}
	return c
}

// join makes b follow a in the list. Either may be none.
func (sh *Shard[C]) join(a, b C) {
	var none C
	if a != none {
		a.Base().next = b
	} else {
		sh.first = b
	}
	if b != none {
		b.Base().prev = a
	} else {
		sh.last = a
	}
}

func (sh *Shard[C]) remove(c C) {
	if sh.walk.at == c {
		sh.walk.at = c.Base().next
	}
	sh.join(c.Base().prev, c.Base().next)
}

// MoveToFront makes c the oldest of the list.
func (sh *Shard[C]) MoveToFront(c C) {
	var none C
	sh.remove(c)
	sh.join(c, sh.first)
	sh.join(none, c)
}

// Next returns the connection behind this one in the list, or none.
func (c *Conn[C]) Next() C { return c.next }

// All returns the connections, oldest first. One may end while it is visited.
func (sh *Shard[C]) All() iter.Seq[C] {
	return func(yield func(C) bool) {
		var none C
		for c := sh.first; c != none; {
			next := c.Base().next
			if !yield(c) {
				return
			}
			c = next
		}
	}
}

// Backward returns the connections, newest first. None may end meanwhile.
func (sh *Shard[C]) Backward() iter.Seq[C] {
	return func(yield func(C) bool) {
		var none C
		for c := sh.last; c != none && yield(c); c = c.Base().prev {
		}
	}
}

// Empty reports whether there are no connections.
func (sh *Shard[C]) Empty() bool {
	var none C
	return sh.first == none
}

// AbortAll aborts every connection.
func (sh *Shard[C]) AbortAll() {
	for !sh.Empty() {
		sh.because(sh.first, lb.Killed)
		sh.Abort(sh.first)
	}
}

// Sources has, of connections to backends that another process has frozen, where they come from and which backends they
// lead to. A client that comes from there, and has asked for one of these, is ourselves: its connection leads back to
// us, and not only while a Service says so. The address alone does not tell: the node's other programs may use it for
// other destinations (a socket is known by both ends).
type Sources struct {
	to    map[netip.AddrPort][]netip.AddrPort
	asked func(fd int) (netip.AddrPort, error)
}

// NewSources returns an empty Sources. asked returns what the client of a steered socket has asked for; nil: that is
// not known.
func NewSources(asked func(fd int) (netip.AddrPort, error)) *Sources {
	return &Sources{make(map[netip.AddrPort][]netip.AddrPort), asked}
}

// Add adds a socket that is connected to a backend; below 0: there is none.
func (s *Sources) Add(fd int, backend netip.AddrPort) {
	if fd < 0 {
		return
	}
	if local, err := socket.Local(fd); err == nil {
		s.Note(local, backend)
	}
}

// Note adds a connection from an address to a backend.
func (s *Sources) Note(from, backend netip.AddrPort) { s.to[from] = append(s.to[from], backend) }

// Has reports whether we have connected from an address to a backend; to any, if it is not known what clients have
// asked for.
func (s *Sources) Has(from, backend netip.AddrPort) bool {
	if s.asked == nil {
		return len(s.to[from]) > 0
	}
	return slices.Contains(s.to[from], backend)
}

// hasClient reports whether a client, whose socket and address are passed, is one of ours.
func (s *Sources) hasClient(fd int, client netip.AddrPort) bool {
	if len(s.to[client]) == 0 {
		return false
	}
	if local, err := socket.Local(fd); err == nil && s.Has(client, local) {
		return true
	}
	if s.asked == nil {
		return false
	}
	dst, err := s.asked(fd)
	return err == nil && s.Has(client, dst)
}

// owner returns the Service that a client who waits has asked for; nil: there is none.
func (d *Dialling) owner(b *balancer.Balancer) *lb.ID {
	if d == nil {
		return nil
	}
	return b.Table().Owner(d.Frontend)
}

// Thaw continues a connection that another process has frozen: c, which has its sides, with a choice of service, if
// backend is valid, and in a dial, unless it is nil. handlers are those of both sides. One that comes back to us, as
// the process before let it do again and again, is reset: its backend is a frontend, or its client is among ours.
func (sh *Shard[C]) Thaw(c C, service lb.ID, backend netip.AddrPort, from *Dialling, kept Kept,
	handlers [2]eventloop.Handler, ours *Sources) {
	sh.Descriptors.Adopt(2)
	conn := c.Base()
	conn.Shared, conn.Choice = true, Resume(sh.LB, service, backend) // the process before may not have ended yet
	_, client, to := c.Parts()
	peer, _ := socket.Peer(client.FD()) // it fails if the client has gone, which is seen soon
	of := service
	if owner := from.owner(sh.LB); owner != nil && !backend.IsValid() {
		of = *owner
	}
	sh.Insert(c, sh.claims.Adopt(of, peer.Addr(), kept.Counted))
	conn.marks.set(spoke, conn.Spoken() || from == nil && (kept.Out > 0 || to.EOF))
	sh.thawKept(c, kept)
	sh.resumeNote(c, peer, kept.Why)
	if from != nil {
		d := sh.newDial(c)
		d.ladder.Thaw(sh.Config, from, service, backend)
		if from.Held {
			d.held = sh.LB.Queues().ResumeHold(&d.ladder.flow)
		}
		switch {
		case d.held.Valid():
			d.await(from.Left)
		case from.Queued != 0 && d.resumeQueue(from.Queued, from.Left):
		default:
			sh.Loop.After(&d.timer, d, from.Left)
		}
	}
	back := ours.hasClient(client.FD(), peer)
	if back || backend.IsValid() && sh.LB.Table().Loops(lb.Frontend{Protocol: service.Protocol, Addr: backend}) {
		sh.because(c, lb.Killed)
		sh.Abort(c)
		return
	}
	// What the sockets are ready for is reported as soon as they are watched.
	for i, s := range [...]*Side[C]{client, to} {
		if s.fd < 0 {
			continue
		}
		if err := sh.Loop.Add(s.FD(), handlers[i]); err != nil {
			sh.Count.Shortages.Add(1)
			sh.because(c, lb.NoResource)
			sh.Abort(c)
			return
		}
	}
}
