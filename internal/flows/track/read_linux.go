package track

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

const (
	// readEvery is how long the table is not read while nothing is lost, and readShare how many times as long as the
	// last reading took it is not read anyhow.
	readEvery = time.Minute
	readShare = 20

	// youth is how long the first packet of a flow may take from its verdict until it has an entry.
	youth = time.Second
)

// reading is one of conntrack's table. What it says of entries that have ended since it began is old.
type reading struct {
	turn uint32 // from 1

	mu   sync.Mutex
	gone map[uint32]struct{} // these entries
}

func (r *reading) ended(id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone[id] = struct{}{}
}

func (r *reading) isGone(id uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, there := r.gone[id]
	return there
}

// readLoop reads the table when it has to be read.
func (t *Tracker) readLoop() {
	for {
		select {
		case <-t.stop:
			return
		case <-t.read:
		case <-t.lost:
			if !t.pause(youth) { // until flows are old enough whose end was lost
				return
			}
		case <-time.After(readEvery):
			if t.known.Load() == 0 {
				continue
			}
		}
		begun := time.Now()
		t.readTable()
		if !t.pause(readShare * time.Since(begun)) {
			return
		}
	}
}

// readTable reads it: flows that it does not have have ended, and others may be ours.
func (t *Tracker) readTable() {
	begun := t.Now()
	t.turn++
	r := &reading{turn: t.turn, gone: make(map[uint32]struct{})}
	t.reading.Store(r)
	defer t.reading.Store(nil)
	for _, ipv6 := range []bool{false, true} {
		if err := flows.Each(t.table, ipv6, nil, func(e *flows.Entry) { t.readEntry(e, r) }); err != nil {
			return // it is read again
		}
	}
	old := begun - int64(youth)
	t.endAll(func(one flow) bool { return one.state != retrying && one.seen != r.turn && one.since < old })
}

// readEntry takes an entry that was in the table a moment ago.
func (t *Tracker) readEntry(e *flows.Entry, r *reading) {
	if e.Status&conntrack.DstTranslated == 0 || r.isGone(e.ID) || t.learn(e, read, r.turn) || flows.IsOver(e) {
		return
	}
	k := keyOf(e.Protocol, e.Src, e.Dst)
	t.adopt(&k, e, r.turn)
	if r.isGone(e.ID) { // meanwhile
		if one, there := t.find(&k); there && one.seen == r.turn {
			t.giveUp(&probe{flowKey: k, since: one.since})
		}
	}
}

// adopt follows a flow that another process, or the kernel, has chosen for.
func (t *Tracker) adopt(k *flowKey, e *flows.Entry, turn uint32) {
	asked := lb.Frontend{Protocol: e.Protocol, Addr: e.Dst}
	service, _, ok := t.Balancer.Table().Lookup(asked)
	if !ok || !t.services.has(service.ID) ||
		!slices.ContainsFunc(service.Backends, func(b lb.Backend) bool { return b.Addr == e.Replies }) {
		return
	}
	if e.Status&conntrack.SeenReply != 0 && k.isTCP() && !t.Balancer.CountsInFlight(asked) {
		return
	}
	one := flow{seen: turn}
	one.begin(t.Balancer.Resume(service.ID, e.Replies), t.Now())
	if e.Status&conntrack.SeenReply != 0 {
		one.answer(e.ID)
	}
	if k.isUDP() && !one.isFollowed() {
		one.end()
		return
	}
	t.keep(k, &one)
}

// endAll ends flows.
func (t *Tracker) endAll(which func(flow) bool) {
	var some []flow
	for i := range t.parts {
		p := &t.parts[i]
		some = some[:0]
		p.mu.Lock()
		for k, one := range p.flows {
			if which(one) {
				t.removeLocked(p, &k, &one)
				some = append(some, one)
			}
		}
		p.mu.Unlock()
		for i := range some {
			some[i].end()
		}
	}
}
