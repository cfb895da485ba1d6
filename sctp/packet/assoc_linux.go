package packet

import (
	"container/list"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/wire"
)

// phase is how far an association has come, as far as can be seen from between
// its endpoints.
type phase uint8

const (
	opening     phase = iota // a backend has been asked, and has not answered
	answered                 // an INIT ACK was passed on
	established              // a COOKIE ACK was passed on
	ending                   // a SHUTDOWN or SHUTDOWN ACK was passed on
	ended                    // over; it stays for what is sent again because it was lost
)

// verdict is what becomes of a packet.
type verdict uint8

const (
	pass       verdict = iota
	badTag             // drop: the verification tag is not that of the association
	unexpected         // drop: not at this time, or not from this side
	refused            // the backend asked does not want the association
	fresh              // an INIT that has nothing to do with the association that was
)

// offers is how many INIT ACKs of one association are remembered. A server that is
// asked again answers with another tag each time, and the client takes one of them.
const offers = 4

// handshake is what the endpoints have said of themselves and is not in force yet:
// those of a new association, or of one that is started again (RFC 9260 section
// 5.2.4). It changes nothing before the endpoints agree.
type handshake struct {
	asked   uint32              // initiate tag of the client's last INIT; 0: none
	since   int64               // when the first INIT was asked that no INIT ACK has answered; 0: none
	offered [offers]engine.Tags // by INIT ACKs
	next    uint8               // where the next offer goes
	echoed  engine.Tags         // the offer that the client took
}

// offer remembers an INIT ACK.
func (h *handshake) offer(t engine.Tags) {
	if !slices.Contains(h.offered[:], t) {
		h.offered[h.next%offers] = t
		h.next++
	}
}

// answered reports whether an INIT ACK has answered the INIT with this tag.
func (h *handshake) answered(clientTag uint32) bool {
	return slices.ContainsFunc(h.offered[:], func(o engine.Tags) bool { return o.Client == clientTag })
}

// take notes that the client echoes the cookie of an offer. False: there was no such offer.
func (h *handshake) take(backendTag uint32) bool {
	for _, o := range h.offered {
		if o.Backend == backendTag && o.Client != 0 {
			h.echoed = o
			return true
		}
	}
	return false
}

// giveUp is how long the backend of an association may leave INITs that start it
// again unanswered before the client gets another. The INIT proves nothing, the
// backend's silence does.
const giveUp = int64(time.Second)

// giveUpAnswered is giveUp for the INIT that it has answered before: the client sends it again when the
// INIT ACK is late, as with a busy backend, and may echo its cookie any moment. Another backend would not
// know that.
const giveUpAnswered = 10 * giveUp

// assoc is one association. It belongs to its shard's loop.
type assoc struct {
	sh              *shard
	list            *assocList
	place           *list.Element // in list
	at              int           // in shard.all
	timer           eventloop.Timer
	claim           session.Claim
	choice          balancer.Choice
	meter           balancer.Meter // of what choice has moved
	dial            *dial          // until the backend has answered
	client, backend side
	tags            engine.Tags // in force; zero before the first COOKIE ECHO
	handshake       handshake
	born            int64 // when it began, on the loop's clock
	active          int64 // when it last passed a packet, on the loop's clock
	note            *note // what is logged of it, once the backend has answered; nil: nothing is
	phase           phase
	counted         bool // as established
	silent          bool // so was the last backend that has failed
	spoke           bool // the backend has sent user data
	clientShut      bool // the client was the first to shut down
}

// fromClient judges a sound packet of the client at time now, and moves the phase on.
func (a *assoc) fromClient(c *wire.Content, now int64) verdict {
	h := &a.handshake
	switch {
	case c.Kinds&wire.KindInit != 0:
		limit := giveUp
		if h.answered(c.InitTag) {
			limit = giveUpAnswered
		}
		silent := a.phase != opening && h.since != 0 && now-h.since > limit
		if a.phase == ended || silent {
			return fresh
		}
		if h.asked = c.InitTag; h.since == 0 {
			h.since = now
		}
		return pass
	case a.phase == opening || c.Kinds&wire.KindInitAck != 0:
		return unexpected
	case c.Kinds&wire.KindCookieEcho != 0 && h.take(c.Tag):
		if a.tags == (engine.Tags{}) { // what is bundled with it, and the answer, have them already
			a.tags = h.echoed
		}
	case a.tags == (engine.Tags{}) || !ours(c, a.tags.Backend, a.tags.Client):
		return badTag
	}
	a.advance(c)
	return pass
}

// fromBackend judges a sound packet of the backend and moves the phase on.
func (a *assoc) fromBackend(c *wire.Content) verdict {
	h := &a.handshake
	switch {
	case c.Kinds&wire.KindInit != 0:
		return unexpected // a server does not ask its clients
	case c.Kinds&wire.KindInitAck != 0:
		if c.Tag != h.asked || h.asked == 0 {
			return badTag
		}
		h.offer(engine.Tags{Client: c.Tag, Backend: c.InitTag})
		if h.since = 0; a.phase == opening {
			a.phase = answered
		}
		return pass
	case a.phase == opening:
		if c.Kinds&wire.KindAbort != 0 && ours(c, h.asked, h.asked) {
			return refused
		}
		return unexpected
	case c.Kinds&wire.KindCookieAck != 0 && c.Tag == h.echoed.Client && c.Tag != 0:
		a.tags, *h = h.echoed, handshake{}
		a.phase = answered // an association that is started again is a new one
	case a.tags != engine.Tags{} && ours(c, a.tags.Client, a.tags.Backend):
	case c.Tag == h.asked && h.since != 0 && a.tags != engine.Tags{} && c.Kinds&wire.KindAbort != 0:
		// A backend that knows the association would answer the INIT. The client sends it again, and gets another.
		h.since -= giveUpAnswered + 1
		return unexpected
	case c.Tag == h.asked && h.asked != 0 && c.Kinds&(wire.KindAbort|wire.KindError) != 0:
		// It refuses to start, or a stale cookie. An association in force goes on.
		if c.Kinds&wire.KindAbort != 0 && a.tags == (engine.Tags{}) {
			a.phase = ended
		}
		return pass
	default:
		return badTag
	}
	a.advance(c)
	return pass
}

// advance moves the phase on by a packet that has the right tag.
func (a *assoc) advance(c *wire.Content) {
	switch {
	case a.phase == ended:
	case c.Kinds&wire.KindAbort != 0, c.Kinds&wire.KindShutdownComplete != 0:
		a.phase = ended
	case c.Kinds&(wire.KindShutdown|wire.KindShutdownAck) != 0:
		a.phase = ending
	case c.Kinds&wire.KindCookieAck != 0 && a.phase == answered:
		a.phase = established
	}
}

// ours reports whether a packet has the tag of its receiver; or, with the T bit,
// that of its sender, who has forgotten the receiver's (RFC 9260 section 8.5.1).
func ours(c *wire.Content, receiver, sender uint32) bool {
	if c.Reflected {
		return c.Tag == sender
	}
	return c.Tag == receiver
}
