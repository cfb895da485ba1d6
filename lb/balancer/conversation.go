package balancer

import (
	"net/netip"

	"github.com/sluice-lb/sluice/affinity"
	"github.com/sluice-lb/sluice/lb"
)

// How long after its last datagram a UDP flow is remembered, in ns: as long as Linux's conntrack does by default
// (net.netfilter.nf_conntrack_udp_timeout and nf_conntrack_udp_timeout_stream).
const (
	UDPTimeout       int64 = 30e9
	UDPStreamTimeout int64 = 120e9 // where there was more than one exchange
)

// maxConversations is how many flows of each kind are remembered for a service port: all that 8,700 a second leave
// behind in 30 s. Each takes some 60 bytes.
const maxConversations = 1 << 18

// conversationTimeouts are those of conversations.
var conversationTimeouts = [2]int64{UDPTimeout, UDPStreamTimeout}

// Conversation is what is remembered of a UDP flow that has given its socket back, so that its client's next datagram
// goes on where the last one went.
type Conversation struct {
	Key      uint64 // of the client's socket, by ConversationKey
	Backend  netip.AddrPort
	Answered bool  // the backend has answered
	Stream   bool  // there was more than one exchange
	Time     int64 // when it was remembered, on the clock of Flow.Now
}

// conversations are those of brief flows, and those of streams.
type conversations [2]affinity.Table[uint64, conversation]

// all returns both, none of what is nil.
func (c *conversations) all() []affinity.Table[uint64, conversation] {
	if c == nil {
		return nil
	}
	return c[:]
}

// conversation is one in a table, which has its key, its time and whether it was a stream.
type conversation struct {
	backend  *backend
	answered bool
}

// ConversationKey returns what the socket of a client is known by that asks for a frontend at one of our addresses:
// a hash, since nothing more than another backend comes of two that are alike. local is invalid if it is not known, and
// scope the interface of a link-local client. A Balancer with the same Seed has the same keys.
func (b *Balancer) ConversationKey(f lb.Frontend, client netip.AddrPort, local netip.Addr, scope uint32) uint64 {
	h := hashAddr(mix(b.Seed), client)
	if local.IsValid() {
		hi, lo := split(local)
		h = mix(mix(h^hi)^lo) ^ uint64(scope)
	}
	return hashAddr(h^uint64(f.Protocol)<<32, f.Addr)
}

// Remember keeps v for the backend of c, which stays in flight until Done; v.Backend is not read. If there are too many
// the one remembered first is forgotten.
func (c Choice) Remember(v *Conversation) {
	i := 0
	if v.Stream {
		i = 1
	}
	one := conversation{backend: c.backend, answered: v.Answered}
	if tables := c.backend.service.conversations.all(); tables != nil {
		tables[i].PutAndSweep(v.Key, one, v.Time, conversationTimeouts[i])
	}
}

// Recall returns what is remembered by a key. The choice, as one of Pick, is in flight until Done. False: nothing is,
// or its backend is neither ready nor serving any more, or the client is no longer among the sources.
func (b *Balancer) Recall(f Flow, key uint64) (Choice, Conversation, bool) {
	snap := b.load()
	at, ok := snap.table.Find(&f.Frontend)
	if !ok {
		return Choice{}, Conversation{}, false
	}
	if at.Ruled {
		if _, ok = snap.table.Admit(at, &f.Frontend, f.Client); !ok {
			return Choice{}, Conversation{}, false
		}
	}
	tables := snap.service(at.Slot).state.conversations.all()
	for i := len(tables) - 1; i >= 0; i-- { // what became a stream was remembered later
		one, ok := tables[i].Get(key, f.Now, conversationTimeouts[i])
		if !ok || !one.backend.is(live) {
			continue
		}
		one.backend.begin()
		return Choice{one.backend}, Conversation{Key: key, Backend: one.backend.addr, Answered: one.answered,
			Stream: i == 1, Time: f.Now}, true
	}
	return Choice{}, Conversation{}, false
}

// Conversations passes to visit those that were remembered at time from or later, one service at a time. The slice is
// visit's only until it returns.
func (ms Memory) Conversations(from int64, visit func(lb.ID, []Conversation)) {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	snap := ms.b.load()
	var all []Conversation
	for _, slot := range snap.table.Slots() {
		s := snap.service(slot).state
		all = all[:0]
		for i := range s.conversations.all() {
			s.conversations[i].Since(from, func(key uint64, one conversation, at int64) {
				all = append(all, Conversation{Key: key, Backend: one.backend.addr, Answered: one.answered,
					Stream: i == 1, Time: at})
			})
		}
		if len(all) > 0 {
			visit(s.id, all)
		}
	}
}

// RememberConversations adds those that another Balancer with the same Seed has remembered for a service. One whose
// backend is neither ready nor serving in the current table is left out.
func (ms Memory) RememberConversations(id lb.ID, all []Conversation) {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	s := ms.b.service(id)
	if s == nil {
		return
	}
	backends := s.byAddr()
	for i := range all {
		if k := backends(all[i].Backend); k != nil && k.is(live) {
			Choice{k}.Remember(&all[i])
		}
	}
}
