package track

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/lb"
)

const (
	// readEvery is how often the table is read while no event is lost. After a reading it is not read for readShare
	// times as long as that has taken.
	readEvery = time.Minute
	readShare = 20

	// youth is how long the first packet of a flow may take from its verdict until it has an entry.
	youth = time.Second
)

// reading is one of conntrack's table. What it says of an entry is old if the entry, or its connection, has ended since
// the reading began.
type reading struct {
	number uint32 // from 1

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
		case <-t.wanted:
		case <-t.lost:
			if !t.pause(youth) { // until flows are old enough whose end was lost
				return
			}
		case <-time.After(readEvery):
			if t.count.Load() == 0 {
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
	t.readings++
	r := &reading{number: t.readings, gone: make(map[uint32]struct{})}
	t.current.Store(r)
	defer t.current.Store(nil)
	for _, ipv6 := range []bool{false, true} {
		if err := flows.Each(t.reader, ipv6, nil, func(e *flows.Entry) { t.readEntry(e, r) }); err != nil {
			return // it is read again
		}
	}
	old := begun - int64(youth)
	t.endAll(func(one flow) bool { return one.state != retrying && one.seen != r.number && one.since < old })
}

// readEntry takes an entry that was in the table a moment ago.
func (t *Tracker) readEntry(e *flows.Entry, r *reading) {
	if !e.Translated() || r.isGone(e.ID) || t.learn(e, shown, r.number) || flows.IsOver(e) {
		return
	}
	k := keyOf(e.Protocol, e.Src, e.Dst)
	t.adopt(&k, e, r.number)
	if r.isGone(e.ID) { // meanwhile
		if one, there := t.find(&k); there && one.seen == r.number {
			t.giveUp(&probe{flowKey: k, since: one.since})
		}
	}
}

// adopt follows a flow whose endpoint another process, or the kernel, has chosen. number is that of the reading.
func (t *Tracker) adopt(k *flowKey, e *flows.Entry, number uint32) {
	asked := lb.Frontend{Protocol: e.Protocol, Addr: e.Dst}
	service, _, ok := t.Balancer.Table().Lookup(asked)
	if !ok || !t.services.has(service.ID) ||
		!slices.ContainsFunc(service.Backends, func(b lb.Backend) bool { return b.Addr == e.Replies }) {
		return
	}
	if e.Answered() && k.isTCP() && !t.Balancer.CountsInFlight(asked) {
		return
	}
	one := flow{seen: number}
	one.begin(t.Balancer.Resume(service.ID, e.Replies), t.Now())
	if e.Answered() {
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
