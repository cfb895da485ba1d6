package queue

import (
	"slices"
	"sync"
	"time"

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
	gone map[uint32]struct{} // these entries, mostGone at the most
}

// mostGone is of how many entries that is known. A reading with more finds no flows of others any more.
const mostGone = manyFlows

func newReading(turn uint32) *reading { return &reading{turn: turn, gone: make(map[uint32]struct{})} }

func (r *reading) ended(id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.gone) < mostGone {
		r.gone[id] = struct{}{}
	}
}

func (r *reading) isGone(id uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, there := r.gone[id]
	return there
}

func (r *reading) isFull() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.gone) == mostGone
}

// readOn reads the table when it has to be read.
func (s *Server) readOn() {
	f := &s.following
	for {
		select {
		case <-f.stop:
			return
		case <-f.read:
		case <-f.lost:
			if !s.pause(youth) { // until what has ended unheard is old enough
				return
			}
		case <-time.After(readEvery):
			if f.known.Load() == 0 {
				continue
			}
		}
		begun := time.Now()
		s.readTable()
		if !s.pause(readShare * time.Since(begun)) {
			return
		}
	}
}

// pause waits for a time. False: the server ends.
func (s *Server) pause(d time.Duration) bool {
	select {
	case <-s.following.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// readTable reads it: flows that it does not have have ended, and others may be ours.
func (s *Server) readTable() {
	f, begun := &s.following, s.Now()
	f.turn++
	r := newReading(f.turn)
	f.reading.Store(r)
	defer f.reading.Store(nil)
	for _, ipv6 := range []bool{false, true} {
		if err := f.table.Entries(ipv6, nil, func(e *conntrack.Entry) { s.readEntry(e, r) }); err != nil {
			return // it is read again
		}
	}
	old := begun - int64(youth)
	s.endAll(func(one *flow) bool { return one.state != retrying && one.seen != r.turn && one.since < old })
}

// readEntry takes an entry that was in the table a moment ago.
func (s *Server) readEntry(e *conntrack.Entry, r *reading) {
	f := &s.following
	if e.Protocol == 0 || e.Status&conntrack.DstTranslated == 0 || r.isGone(e.ID) ||
		s.learn(e, false, false, r.turn) || over(e) || r.isFull() {
		return
	}
	k := keyOf(e.Protocol, e.Src, e.Dst)
	s.adopt(&k, e, r.turn)
	if r.isGone(e.ID) { // meanwhile
		if one, there := f.find(&k); there && one.seen == r.turn {
			s.giveUp(&probe{flowKey: k, since: one.since})
		}
	}
}

// adopt has a flow be known that another process, or the kernel, has chosen for.
func (s *Server) adopt(k *flowKey, e *conntrack.Entry, turn uint32) {
	asked := lb.Frontend{Protocol: e.Protocol, Addr: e.Dst}
	service, _, ok := s.Balancer.Table().Lookup(asked)
	if !ok || !s.following.services.has(service.ID) ||
		!slices.ContainsFunc(service.Backends, func(b lb.Backend) bool { return b.Addr == e.Replies }) {
		return
	}
	if e.Status&conntrack.SeenReply != 0 && k.isTCP() && !s.Balancer.CountsInFlight(asked) {
		return
	}
	one := flow{choice: s.Balancer.Resume(service.ID, e.Replies), since: s.Now(), seen: turn}
	if e.Status&conntrack.SeenReply != 0 {
		one.answer(e.ID)
	}
	if k.isUDP() && one.endsUnheard() {
		one.end()
		return
	}
	s.keep(k, &one)
}
