package queue

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

const (
	// manyFlows is how many are known at the same time, in some 40 MB. Others are not in flight, as far as is known.
	manyFlows = 1 << 18

	// flowParts are for goroutines not to wait for each other.
	flowParts = 64

	// manyOfService is how many of them one Service port may have.
	manyOfService = manyFlows / 5 * 4
)

// flowTable has the flows that have an endpoint of ours, until they have ended.
type flowTable struct {
	parts [flowParts]flowPart

	known atomic.Int64  // how many there are
	young atomic.Int64  // how many are to be looked at
	full  atomic.Uint64 // how many had no room
	wake  chan struct{} // has a value when the first is to be looked at
}

type flowPart struct {
	mu    sync.Mutex
	flows map[flowKey]flow
	held  map[lb.ID]int // of each Service port
	young line
}

// flowKey is what the first packet of a flow has.
type flowKey struct {
	client, asked         [16]byte // without pointers, for the collector's sake
	clientPort, askedPort uint16
	protocol              lb.Protocol
}

// flow is what is known of one. Times are on the clock of the Balancer.
type flow struct {
	choice    lb.Choice // not valid: its endpoint has failed, and what the client sends next is awaited
	admission lb.Admission
	failed    *failed // nil: no endpoint has
	since     int64   // when it got its endpoint, or lost it
	id        uint32  // of conntrack's entry; 0: no answer was seen
	seen      uint32  // the last reading of conntrack's table that had it
	missing   bool    // conntrack had no entry when it was looked at
	patient   bool    // there is no other endpoint: it may take as long as it takes
}

// failed is what a flow has behind it.
type failed struct {
	tried    lb.Tried
	attempts int
}

func keyOf(protocol lb.Protocol, client, asked netip.AddrPort) flowKey {
	return flowKey{client.Addr().As16(), asked.Addr().As16(), client.Port(), asked.Port(), protocol}
}

func (k *flowKey) ends() (client, asked netip.AddrPort) {
	return netip.AddrPortFrom(addrOf(k.client), k.clientPort), netip.AddrPortFrom(addrOf(k.asked), k.askedPort)
}

func addrOf(b [16]byte) netip.Addr { return netip.AddrFrom16(b).Unmap() }

// isUDP reports whether an answer is not to be expected within a time.
func (k *flowKey) isUDP() bool { return k.protocol == lb.UDP }

func (t *flowTable) part(k *flowKey) *flowPart {
	h := uint32(k.clientPort) ^ uint32(k.clientPort>>8) ^ uint32(k.client[15])*31 ^ uint32(k.client[14])*7 ^
		uint32(k.askedPort) ^ uint32(k.asked[15])*13
	return &t.parts[h%flowParts]
}

// take takes a flow out of the table.
func (t *flowTable) take(k *flowKey) (one flow, ok bool) {
	p := t.part(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	if one, ok = p.flows[*k]; ok {
		t.remove(p, k, &one)
	}
	return one, ok
}

// remove does so for who holds p.mu.
func (t *flowTable) remove(p *flowPart, k *flowKey, one *flow) {
	delete(p.flows, *k)
	id := one.admission.Service()
	if p.held[id]--; p.held[id] == 0 {
		delete(p.held, id)
	}
	t.known.Add(-1)
}

// put adds a flow that is not in the table, to be looked at after a time, unless that is 0. False: there is no room, or
// it is there.
func (t *flowTable) put(k *flowKey, one *flow, look int64) bool {
	p, id := t.part(k), one.admission.Service()
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.flows[*k]; there {
		return false
	}
	if len(p.flows) >= manyFlows/flowParts || p.held[id] >= manyOfService/flowParts {
		t.full.Add(1)
		return false
	}
	if p.flows == nil {
		p.flows, p.held = make(map[flowKey]flow), make(map[lb.ID]int)
	}
	p.flows[*k] = *one
	p.held[id]++
	t.known.Add(1)
	if look > 0 {
		t.look(p, &glance{*k, one.since, one.since + look})
	}
	return true
}

// look has a flow be looked at. The caller holds p.mu.
func (t *flowTable) look(p *flowPart, g *glance) {
	if !p.young.push(g) {
		return
	}
	if t.young.Add(1) == 1 {
		notify(t.wake)
	}
}

// end gives back what a flow has, which is not in the table any more.
func (one *flow) end(k *flowKey) {
	one.choice.Done(nil)
	one.admission.End(addrOf(k.client))
}

// line has flows in the order in which they are to be looked at.
type line struct {
	list []glance
	from int // what is before is done
}

// glance is when a flow is looked at that began at a time.
type glance struct {
	flowKey
	since, at int64
}

// push adds one. False: there is no room.
func (l *line) push(g *glance) bool {
	if l.from > 0 && len(l.list) == cap(l.list) {
		l.list = l.list[:copy(l.list, l.list[l.from:])]
		l.from = 0
	}
	if len(l.list)-l.from >= 2*manyFlows/flowParts {
		return false
	}
	l.list = append(l.list, *g)
	return true
}

// due returns the first if its time has come; nil: it has not.
func (l *line) due(now int64) *glance {
	if l.from == len(l.list) || l.list[l.from].at > now {
		return nil
	}
	g := l.list[l.from]
	if l.from++; l.from == len(l.list) {
		l.list, l.from = l.list[:0], 0
	}
	return &g
}
