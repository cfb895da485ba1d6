package packet

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/mmsg"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/wire"
)

const (
	// rounds is how many batches one event may take before the loop's other sockets
	// have their turn.
	rounds = 4

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
)

// shard is the part of the packet engine that lives on one loop: a share of all
// associations, of which no other loop sees a packet.
type shard struct {
	cfg       *engine.Config
	loop      *eventloop.Loop
	index, n  int
	limit     int // of associations
	sockets   [2]*rawSocket
	listeners map[frontendKey]lb.Frontend
	sides     map[sideKey]*side
	dialling  assocList // those that are opening or answered, oldest first
	open      assocList // established and ending
	over      assocList // ended
	ports     uint16
	drain     eventloop.Drain
	count     engine.Counters
}

// frontendKey is where packets to a frontend arrive; the zero address means any of
// the family.
type frontendKey struct {
	addr netip.Addr
	port uint16
	ipv6 bool
}

// family is what a shard has for one address family.
type rawSocket struct {
	sh     *shard
	ipv6   bool
	fd     int // raw socket
	router int // socket to ask for routes
	in     *mmsg.Reader
	out    outgoing
	errors *mmsg.Reader // what ICMP has sent back
}

// group is a list of associations, oldest first.
type assocList struct {
	first, last *assoc
	len         int
}

func (g *assocList) add(a *assoc) {
	if a.list != nil {
		a.list.remove(a)
	}
	if a.list, a.prev = g, g.last; g.last != nil {
		g.last.next = a
	} else {
		g.first = a
	}
	g.last = a
	g.len++
}

func (g *assocList) remove(a *assoc) {
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		g.first = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		g.last = a.prev
	}
	a.next, a.prev, a.list = nil, nil, nil
	g.len--
}

func newShard(cfg *engine.Config, loop *eventloop.Loop, index, n int) *shard {
	return &shard{
		cfg: cfg, loop: loop, index: index, n: n, limit: max(1, (cfg.MaxAssociations+n-1)/n),
		listeners: make(map[frontendKey]lb.Frontend), sides: make(map[sideKey]*side),
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

// family returns what there is for a family, made at the first use.
func (sh *shard) rawSocket(ipv6 bool) (*rawSocket, error) {
	if sock := sh.sockets[familyIndex(ipv6)]; sock != nil {
		return sock, nil
	}
	fd, err := openRaw(ipv6, sh.index, sh.n, sh.cfg.SocketBuffer)
	if err != nil {
		return nil, err
	}
	return sh.newRawSocket(ipv6, fd)
}

// familyIndex returns the place of a family in shard.sockets.
func familyIndex(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}

// newRawSocket makes what there is for a family of a raw socket, and receives by it from
// now on. The socket is the family's, whatever is returned.
func (sh *shard) newRawSocket(ipv6 bool, fd int) (*rawSocket, error) {
	sock := &rawSocket{sh: sh, ipv6: ipv6, fd: fd, router: -1}
	any := netip.IPv4Unspecified()
	if ipv6 {
		any = netip.IPv6Unspecified()
	}
	var err error
	if sock.router, err = socket.New(any, unix.SOCK_DGRAM, 0); err == nil {
		sock.in, sock.errors = mmsg.NewReader(packetSize), mmsg.NewReader(quoteSize)
		err = sh.loop.AddRead(sock.fd, sock)
	}
	if err != nil {
		sock.close()
		return nil, err
	}
	sh.sockets[familyIndex(ipv6)] = sock
	return sock, nil
}

func (sock *rawSocket) close() {
	_ = sock.sh.loop.Close(sock.fd)
	if sock.router >= 0 {
		_ = unix.Close(sock.router)
	}
}

// HandleEvent passes on what has arrived.
func (sock *rawSocket) HandleEvent(ev eventloop.Event) {
	if ev&eventloop.Failed != 0 {
		sock.readErrors()
	}
	for range rounds {
		n, err := sock.in.Read(sock.fd, 0)
		switch {
		case err == unix.EAGAIN:
			return
		case err != nil: // of a packet that ICMP has told of
			sock.readErrors()
			continue
		}
		now := eventloop.Now()
		for i := range n {
			if d, ok := parse(sock.in, i, sock.ipv6); ok {
				sock.handle(&d, now)
			} else {
				sock.sh.count.Malformed.Add(1)
			}
		}
		sock.flush()
		if n < mmsg.Slots {
			return
		}
	}
	_ = sock.sh.loop.RearmRead(sock.fd) // fails for a descriptor that is not watched only
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
		return // it came before the socket had its filter; another shard has it, too
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
		a.finish(nil)
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
	sh, a, b := sock.sh, from.a, d.sctp
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
		sh.count.MessagesIn.Add(c.Messages)
		sh.count.BytesIn.Add(c.Bytes)
		a.meter.Add(a.choice, int(c.Bytes), 0)
		if a.dial != nil {
			a.dial.init = append(a.dial.init[:0], b...)
		}
	} else {
		sh.count.PacketsOut.Add(1)
		sh.count.MessagesOut.Add(c.Messages)
		sh.count.BytesOut.Add(c.Bytes)
		a.meter.Add(a.choice, 0, int(c.Bytes))
	}
	wire.SetPorts(b, to.key.localPort, to.key.peerPort)
	sock.add(b, to, d.tos)
}

// add puts a packet into the batch that is being made.
func (sock *rawSocket) add(b []byte, to *side, tos byte) {
	sock.out.add(b, to, tos)
	if sock.out.full() {
		sock.flush()
	}
}

func (sock *rawSocket) flush() {
	busy, failed := sock.out.flush(sock.fd)
	sock.sh.count.Busy.Add(busy)
	sock.sh.count.SendErrors.Add(failed)
}

// send sends a packet of our own, without ports, to an endpoint.
func (sh *shard) send(b []byte, to *side) {
	sock, err := sh.rawSocket(to.ipv6)
	if err != nil {
		return // the Server is closed
	}
	wire.SetPorts(b, to.key.localPort, to.key.peerPort)
	sock.add(b, to, 0)
	sock.flush() // b may be gone soon
}

// refuseASCONF tells one who wants to change its addresses that nobody here knows
// how. The packet is dropped whole: what else is in it comes again.
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
		sock.sh.send(wire.Unrecognized(theirs, asked), from)
	}
}

// handleUnknown sees to a packet of no association.
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
	// RFC 9260 section 8.4. A client whose association we do not know any more need
	// not find out by silence.
	sh.count.Stray.Add(1)
	from := newSide(nil, netip.AddrPortFrom(d.peer, c.Source), netip.AddrPortFrom(d.local, c.Dest), d.scope)
	switch {
	case c.Kinds&(wire.KindAbort|wire.KindShutdownComplete|wire.KindCookieAck|wire.KindError|wire.KindInitAck) != 0:
	case c.Kinds&wire.KindShutdownAck != 0:
		sh.send(wire.ShutdownComplete(c.Tag), &from)
	default:
		sh.send(wire.Abort(c.Tag, true), &from)
	}
}

// readErrors looks for backends that cannot be reached, of which ICMP tells. For
// an association that is established it means nothing (RFC 9260 appendix B): a way
// may come back.
func (sock *rawSocket) readErrors() {
	for {
		n, err := sock.errors.Read(sock.fd, unix.MSG_ERRQUEUE)
		if err != nil || n == 0 {
			return
		}
		for i := range n {
			if quote := sock.errors.Payload(i); len(quote) >= 4 && unreachable(sock.errors, i) {
				sock.failed(sock.errors.Name(i).AddrPort().Addr(), quote)
			}
		}
	}
}

// failed gives up a backend that was asked and cannot be reached.
func (sock *rawSocket) failed(peer netip.Addr, quote []byte) {
	sh := sock.sh
	source, dest := uint16(quote[0])<<8|uint16(quote[1]), uint16(quote[2])<<8|uint16(quote[3])
	to := netip.AddrPortFrom(peer, dest)
	local, err := socket.Source(sock.router, to)
	if err != nil {
		return
	}
	key := newSide(nil, to, netip.AddrPortFrom(local, source), 0).key
	if l, ok := sh.sides[key]; ok && l == &l.a.backend && l.a.phase == opening {
		sh.count.DialRefused.Add(1)
		l.a.dialFailed(errRefused)
		l.a.dialNext()
	}
}

var (
	errRefused = errors.New("backend refuses the association")
	errSilent  = errors.New("backend does not answer")
	errNoPort  = errors.New("no port is left towards the backend")
)

// idle reports whether no association is left that has not ended.
func (sh *shard) idle() bool { return sh.dialling.len+sh.open.len == 0 }

// leaveGone has associations that have not been answered leave backends that are
// gone. One that is established is with its backend for good.
func (sh *shard) leaveGone() {
	for a := sh.dialling.first; a != nil; {
		next := a.next
		if a.phase == opening && !a.choice.Live() {
			a.dial.attempt-- // it was not this one's turn to fail
			a.dialFailed(nil)
			a.dialNext()
		}
		a = next
	}
}

// stop ends everything.
func (sh *shard) stop() {
	for _, g := range []*assocList{&sh.dialling, &sh.open} {
		for g.first != nil {
			g.first.abort()
		}
	}
	for sh.over.first != nil {
		sh.over.first.remove()
	}
	for i, sock := range sh.sockets {
		if sock != nil {
			sock.close()
			sh.sockets[i] = nil
		}
	}
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
