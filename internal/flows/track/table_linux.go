package track

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
)

const (
	// manyFlows is how many are known at the same time, in some 40 MB. Others do not count as in flight.
	manyFlows = 1 << 18

	// flowParts are for goroutines not to wait for each other. Each has its own shares, since the flows of a Service
	// and of a client are spread evenly.
	flowParts = 64
)

// flowSeed makes it a secret which flows are in one part: else a client could choose them, and fill that of others.
var flowSeed = maphash.MakeSeed()

// flowTable has the flows that have an endpoint of ours, until they have ended.
type flowTable struct {
	parts [flowParts]flowPart

	count    atomic.Int64  // of flows
	pending  atomic.Int64  // how many probes are scheduled
	rejected rejections    // flows that it did not take
	wake     chan struct{} // has a value when there is a first probe
}

type flowPart struct {
	mu     sync.Mutex // guards the following
	flows  map[flowKey]flow
	tally  tally
	probes probes
}

// flowKey is what the first packet of a flow has.
type flowKey struct {
	client, asked         [16]byte // without pointers, for the collector's sake
	clientPort, askedPort uint16
	protocol              lb.Protocol
}

func keyOf(protocol lb.Protocol, client, asked netip.AddrPort) flowKey {
	return flowKey{client.Addr().As16(), asked.Addr().As16(), client.Port(), asked.Port(), protocol}
}

// keyOfFlow returns the key of a flow by what the Balancer is asked.
func keyOfFlow(f *lb.Flow) flowKey {
	return keyOf(f.Frontend.Protocol, netip.AddrPortFrom(f.Client, f.ClientPort), f.Frontend.Addr)
}

func (k *flowKey) ends() (client, asked netip.AddrPort) {
	return netip.AddrPortFrom(addrOf(k.client), k.clientPort), netip.AddrPortFrom(addrOf(k.asked), k.askedPort)
}

func addrOf(b [16]byte) netip.Addr { return netip.AddrFrom16(b).Unmap() }

// host returns whose share a flow is of: of IPv6 a client has a /64 to choose from (RFC 4291, 2.5.1).
func (k *flowKey) host() (h host) {
	h = k.client
	if !addrOf(h).Is4() {
		clear(h[len(h)/2:])
	}
	return h
}

// isUDP reports whether the flow is one of UDP: whose endpoint may take any time to answer, or never do.
func (k *flowKey) isUDP() bool { return k.protocol == lb.UDP }

func (k *flowKey) isTCP() bool { return k.protocol == lb.TCP }

// part returns the part that a flow is in.
func (t *flowTable) part(k *flowKey) *flowPart {
	return &t.parts[maphash.Comparable(flowSeed, *k)%flowParts]
}

// find returns a flow of the table.
func (t *flowTable) find(k *flowKey) (one flow, ok bool) {
	p := t.part(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	one, ok = p.flows[*k]
	return one, ok
}

// take takes a flow out of the table.
func (t *flowTable) take(k *flowKey) (one flow, ok bool) {
	p := t.part(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	if one, ok = p.flows[*k]; ok {
		t.removeLocked(p, k, &one)
	}
	return one, ok
}

// removeLocked removes a flow from a part.
func (t *flowTable) removeLocked(p *flowPart, k *flowKey, one *flow) {
	delete(p.flows, *k)
	p.tally.add(nameOf(one.service()), k.host(), -1)
	t.count.Add(-1)
}

// put adds a flow and, except for UDP, schedules its probe. It returns why the table does not take the flow, or none. A
// flow has no room either if its probe has none: a flow in the table that waits for its endpoint has one scheduled.
func (t *flowTable) put(k *flowKey, one *flow, of *shares.Shares) (why rejection) {
	p := t.part(k)
	service, client := nameOf(one.service()), k.host()
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.flows[*k]; there {
		return inTable
	}
	free := manyFlows/flowParts - int64(len(p.flows))
	if !k.isUDP() && p.probes.full() {
		free = 0
	}
	if why = p.tally.reject(of, service, client, free); why != none {
		t.rejected[why].Add(1)
		return why
	}
	if p.flows == nil {
		p.flows = make(map[flowKey]flow)
	}
	p.tally.add(service, client, 1)
	p.flows[*k] = *one
	t.count.Add(1)
	if !k.isUDP() {
		t.probeLocked(p, &probe{*k, one.since, one.since + firstProbe})
	}
	return none
}

// change lets how change a flow if it is still the one of a probe, and removes it if how says so.
func (t *flowTable) change(g *probe, how func(p *flowPart, one *flow) (keep bool)) {
	p := t.part(&g.flowKey)
	p.mu.Lock()
	defer p.mu.Unlock()
	one, there := p.flows[g.flowKey]
	switch {
	case !there || one.since != g.since:
	case how(p, &one):
		p.flows[g.flowKey] = one
	default:
		t.removeLocked(p, &g.flowKey, &one)
	}
}

// probeLocked schedules a probe.
func (t *flowTable) probeLocked(p *flowPart, g *probe) {
	p.probes.push(g)
	if t.pending.Add(1) == 1 {
		flows.Notify(t.wake)
	}
}

// probes are due for flows in this order.
type probes struct {
	list []probe
	from int // what is before is done
}

// probe is when to ask conntrack about a flow that began at a time.
type probe struct {
	flowKey
	since, at int64
}

// full reports whether there is no room for the probe of another flow. There are more probes than flows, since those of
// flows that have ended stay until they are due.
func (l *probes) full() bool { return len(l.list)-l.from >= 2*manyFlows/flowParts }

// push adds one.
func (l *probes) push(g *probe) {
	if l.from > 0 && len(l.list) == cap(l.list) {
		l.list = l.list[:copy(l.list, l.list[l.from:])]
		l.from = 0
	}
	l.list = append(l.list, *g)
}

// due returns the first if its time has come; nil: it has not.
func (l *probes) due(now int64) *probe {
	if l.from == len(l.list) || l.list[l.from].at > now {
		return nil
	}
	g := l.list[l.from]
	if l.from++; l.from == len(l.list) {
		l.list, l.from = l.list[:0], 0
	}
	return &g
}
