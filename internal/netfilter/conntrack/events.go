package conntrack

import "net/netip"

// Kinds are kinds of events.
type Kinds uint8

// The kinds. An entry is made when the first packet leaves this node. It changes with the state of its connection, with
// the first answer and with its mark, not with each packet.
const (
	New Kinds = 1 << iota
	Update
	Destroy

	// Turn is those of Update alone with which a connection of TCP is answered, has ended for both, or was reset, and
	// those of SCTP. They come as Update. The kernel passes over others, and over Destroy of a connection whose end was
	// one of them.
	Turn

	// Lost comes, without an entry, when events have found the buffer full.
	Lost
)

// Have reports whether events of a kind are of these kinds.
func (k Kinds) Have(kind Kinds) bool { return k&kind != 0 || kind == Update && k&Turn != 0 }

// Event says what has become of an entry. Counts and times come with Destroy only. A connection that is refused is
// Destroy at once, in state TCPClose and without SeenReply: where a reset is all the answer the kernel has no use for
// the entry.
type Event struct {
	Kind Kinds // one
	Entry
}

// Want says which events are wanted: of some kinds, and of some entries. The zero value wants none.
type Want struct {
	Kinds Kinds
	Of    Selection
	Addrs []netip.Addr // with To
}

// Selection says of which entries events are wanted.
type Selection uint8

// The selections.
const (
	// To has the entries whose first packet went to one of some addresses. Others come too at times: the kernel
	// compares with as many ranges as its filter has room for, and with the last 32 bits of IPv6.
	To Selection = iota

	Translated // the entries whose destination is translated
	Any        // all entries
)

// Events passes on what becomes of the entries of Services. Make it by Listen.
type Events struct{ events }

// EventStats count events.
type EventStats struct {
	Handled uint64

	// Lost is how many found the buffer full. The kernel never waits.
	Lost uint64
}

// Listen calls handle, on a goroutine of its own, for events in the network namespace of the calling thread, until
// Close. handle must not keep the event, and should not wait: what the kernel has to say meanwhile has a bounded
// buffer. Nothing comes before Want. On other systems than Linux the error is errors.ErrUnsupported.
//
// The kernel has events of those entries only that were made while anyone listened, if
// net.netfilter.nf_conntrack_events is 2, as it is from Linux 5.19 on.
func Listen(handle func(*Event)) (*Events, error) {
	e := new(Events)
	return e, e.listen(handle)
}

// Want asks the kernel for the events that any of some wants has, in place of those before.
func (e *Events) Want(wants ...Want) error { return e.want(wants) }

// Stats returns the counters, also after Close.
func (e *Events) Stats() EventStats { return e.stats() }

// Close ends the goroutine and waits for it. handle is not called afterwards.
func (e *Events) Close() error { return e.close() }
