package packet

import (
	"container/list"
	"errors"
	"iter"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/wire"
)

const (
	// handshakeTime is how long an answered association may take to be established:
	// the default life of a cookie (RFC 9260 section 16, Valid.Cookie.Life).
	handshakeTime = 60 * time.Second

	// endingTime is how long nothing may pass once one side shuts down. The other may
	// have data left, but then it sends.
	endingTime = 60 * time.Second

	// lingerTime is how long an association stays when it is over, so that the last
	// packets find their way if they are sent again: the initial and minimal RTO are 1 s
	// (RFC 9260 section 16).
	lingerTime = 5 * time.Second

	// counting is after how long at most the bytes of an association are in the counters of its backend.
	counting = 5 * time.Second
)

// shard is the part of the packet engine that lives on one loop: a share of all
// associations, of which no other loop sees a packet.
type shard struct {
	cfg       *engine.Config
	loop      *eventloop.Loop
	index, n  int
	limit     int                 // of associations
	sockets   map[bool]*rawSocket // by whether it is of IPv6
	listeners map[frontendKey]lb.Frontend
	sides     map[sideKey]*side
	dialling  assocList // those that are opening or answered, oldest first
	open      assocList // established and ending
	over      assocList // ended
	all       []*assoc  // those of the three, in no order, to be looked at
	claims    session.Claims
	ports     uint16
	drain     eventloop.Drain
	sample    look.Sample // of associations that are logged
	count     engine.Counters
}

// frontendKey is where packets to a frontend arrive; the zero address means any of
// the family.
type frontendKey struct {
	addr netip.Addr
	port uint16
	ipv6 bool
}

// assocList is a list of associations, oldest first.
type assocList struct{ list.List }

// add appends an association, and removes it from the list that it is in.
func (g *assocList) add(a *assoc) {
	if a.list != nil {
		a.list.Remove(a.place)
	}
	a.list, a.place = g, g.PushBack(a)
}

// enter makes an association one of the shard's.
func (sh *shard) enter(a *assoc) {
	a.at = len(sh.all)
	sh.all = append(sh.all, a)
}

// leave takes it from these.
func (sh *shard) leave(a *assoc) {
	last := len(sh.all) - 1
	sh.all[a.at] = sh.all[last]
	sh.all[a.at].at = a.at
	sh.all[last] = nil
	sh.all = sh.all[:last]
}

// all iterates over the associations. Each may be removed meanwhile.
func (g *assocList) all() iter.Seq[*assoc] {
	return func(yield func(*assoc) bool) {
		for e := g.Front(); e != nil; {
			a := e.Value.(*assoc)
			if e = e.Next(); !yield(a) {
				return
			}
		}
	}
}

func newShard(cfg *engine.Config, loop *eventloop.Loop, index, n int) *shard {
	return &shard{
		cfg: cfg, loop: loop, index: index, n: n, limit: max(1, (cfg.MaxAssociations+n-1)/n),
		claims:    session.NewClaims(cfg.Shares, cfg.LB, index),
		listeners: make(map[frontendKey]lb.Frontend), sides: make(map[sideKey]*side),
		sockets: make(map[bool]*rawSocket),
	}
}

// listen starts taking INITs for f. It runs on the loop, as all below does.
func (sh *shard) listen(key frontendKey, f lb.Frontend) error {
	if _, err := sh.rawSocket(key.ipv6); err != nil {
		return err
	}
	sh.listeners[key] = f
	return nil
}

// rawSocket returns the raw socket of an address family, opened at the first use.
func (sh *shard) rawSocket(ipv6 bool) (*rawSocket, error) {
	if sock := sh.sockets[ipv6]; sock != nil {
		return sock, nil
	}
	any := netip.IPv4Unspecified()
	if ipv6 {
		any = netip.IPv6Unspecified()
	}
	router, err := socket.New(any, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	fd, err := openRaw(ipv6, sh.index, sh.n)
	if err != nil {
		return nil, errors.Join(err, unix.Close(router))
	}
	return sh.newRawSocket(ipv6, fd, router)
}

// handle judges one packet and passes it on.
func (sock *rawSocket) handle(d *received, now int64) {
	sh := sock.sh
	c, err := wire.Parse(d.sctp)
	if err != wire.Sound {
		sh.fault(err).Add(1)
		return
	}
	if sh.n > 1 && shareOf(c.Source, c.Dest, sh.n) != sh.index {
		return // it was queued before the socket had its filter; another shard has it, too
	}
	if c.Kinds&wire.KindInit != 0 && d.hops == 1 {
		sh.count.HopsExceeded.Add(1)
		return
	}
	key := sideKey{peer: d.peer.As16(), local: d.local.As16(), scope: d.scope, peerPort: c.Source, localPort: c.Dest}
	from, ok := sh.sides[key]
	if !ok {
		sock.handleUnknown(d, &c, now)
		return
	}
	a := from.a
	if c.Kinds&wire.KindASCONF != 0 {
		sock.refuseASCONF(from, d, &c)
		return
	}
	was := a.phase
	v := badTag
	if from == &a.client {
		v = a.fromClient(&c, now)
	} else {
		v = a.fromBackend(&c)
	}
	switch v {
	case badTag:
		sh.count.BadTag.Add(1)
	case unexpected:
		sh.count.Unexpected.Add(1)
	case refused:
		sh.count.DialRefused.Add(1)
		a.dialFailed(errRefused)
		a.dialNext()
	case fresh:
		a.finish(lb.ServerTimeout) // unless it has ended already
		a.remove()
		sock.handleUnknown(d, &c, now)
	case pass:
		a.active = now
		sock.forward(from, d, &c)
		if a.phase != was {
			a.moved(was, from, &c)
		}
	}
}

// forward sends a packet to the other side of its association.
func (sock *rawSocket) forward(from *side, d *received, c *wire.Content) {
	sh, a, b, hops := sock.sh, from.a, d.sctp, 0
	if c.Kinds&(wire.KindInit|wire.KindInitAck) != 0 {
		if b = wire.Strip(b); b == nil {
			sh.count.Malformed.Add(1)
			return
		}
	}
	to := &a.client
	if from == to {
		to = &a.backend
		sh.count.PacketsIn.Add(1)
		if c.Kinds&wire.KindInit != 0 {
			hops = d.left()
		}
		if a.dial != nil {
			a.dial.init, a.dial.hops = append(a.dial.init[:0], b...), hops
		}
	} else {
		sh.count.PacketsOut.Add(1)
	}
	a.passed(sh.count.Pass(to == &a.backend, c.Messages, int(c.Bytes)))
	if to == &a.client && c.Messages > 0 && !a.spoke {
		a.speaks()
	}
	sock.add(b, to, d.tos, hops)
}

// send sends a packet without ports to an endpoint, at once. hops are those of add.
func (sh *shard) send(b []byte, to *side, hops int) {
	sock, err := sh.rawSocket(to.ipv6)
	if err != nil {
		return // the Server is closed
	}
	sock.add(b, to, 0, hops)
	sock.flush() // b may be gone soon
}

// refuseASCONF answers a request to change an endpoint's addresses with an ERROR: unrecognized
// chunk. The packet is dropped whole: its other chunks are retransmitted.
func (sock *rawSocket) refuseASCONF(from *side, d *received, c *wire.Content) {
	a := from.a
	theirs, others := a.tags.Client, a.tags.Backend
	if from == &a.backend {
		theirs, others = others, theirs
	}
	if others == 0 || c.Tag != others {
		sock.sh.count.BadTag.Add(1)
		return
	}
	sock.sh.count.ASCONF.Add(1)
	if asked := wire.Find(d.sctp, wire.KindASCONF); asked[0] == wire.ChunkASCONF {
		sock.sh.send(wire.Unrecognized(theirs, asked), from, 0)
	}
}

// handleUnknown handles a packet of no association.
func (sock *rawSocket) handleUnknown(d *received, c *wire.Content, now int64) {
	sh := sock.sh
	f, ok := sh.listeners[frontendKey{d.local, c.Dest, sock.ipv6}]
	if !ok {
		if f, ok = sh.listeners[frontendKey{port: c.Dest, ipv6: sock.ipv6}]; !ok {
			sh.count.Stray.Add(1) // another program's, perhaps
			return
		}
	}
	if c.Kinds&wire.KindInit != 0 {
		sock.accept(f, d, c, now)
		return
	}
	// RFC 9260 section 8.4: a client whose association is not known any more is answered.
	sh.count.Stray.Add(1)
	from := newSide(nil, netip.AddrPortFrom(d.peer, c.Source), netip.AddrPortFrom(d.local, c.Dest), d.scope)
	switch {
	case c.Kinds&(wire.KindAbort|wire.KindShutdownComplete|wire.KindCookieAck|wire.KindError|wire.KindInitAck) != 0:
	case c.Kinds&wire.KindShutdownAck != 0:
		sh.send(wire.ShutdownComplete(c.Tag), &from, 0)
	default:
		sh.send(wire.Abort(c.Tag, true), &from, 0)
	}
}

var (
	errRefused = errors.New("endpoint refuses the association")
	errSilent  = errors.New("endpoint does not answer")
	errNoPort  = errors.New("no port is left towards the endpoint")
)

// idle reports whether no association is left that has not ended.
func (sh *shard) idle() bool { return sh.dialling.Len()+sh.open.Len() == 0 }

// leaveGone moves associations that have not been answered away from backends that are
// gone. One that is established stays with its backend.
func (sh *shard) leaveGone() {
	for a := range sh.dialling.all() {
		if a.phase == opening && !a.choice.Live() {
			a.dial.Gone(a.choice)
			a.leave(nil)
			a.dialNext()
		}
	}
}

// stop ends everything.
func (sh *shard) stop() {
	for _, g := range []*assocList{&sh.dialling, &sh.open} {
		for a := range g.all() {
			a.abort(early(a.phase, lb.KilledInConnect, lb.Killed))
		}
	}
	for a := range sh.over.all() {
		a.remove()
	}
	for _, sock := range sh.sockets {
		sock.close()
	}
	clear(sh.sockets)
}

// fault returns the counter for packets with this fault.
func (sh *shard) fault(f wire.Fault) *atomic.Uint64 {
	switch f {
	case wire.BadChecksum:
		return &sh.count.BadChecksum
	case wire.Bundled:
		return &sh.count.Bundled
	}
	return &sh.count.Malformed
}
