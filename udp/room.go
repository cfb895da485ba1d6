package udp

import (
	"net/netip"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// assurance says whether the client of a flow is known to be there, as conntrack's ASSURED does. A spoofed source never
// gets an answer, so no datagram follows one. A client that asks once loses nothing when its flow ends.
type assurance uint8

const (
	unknown assurance = iota
	known             // a datagram of the client has followed an answer, or answers go on and on
	assurances
)

// newcomers: flows of unknown assurance may keep one of so many of a holder's places beside known ones, since a new
// client needs a place until it is known (segmented LRU: Karedla, Love and Wherry, IEEE Computer 27(3), 1994).
const newcomers = 8

// holder is what a Service or a client's host has in one shard. A nil holder has nothing.
type holder[K comparable] struct {
	key   K
	flows [assurances]order // the most recently active first
}

func (h *holder[K]) count(s assurance) int {
	if h == nil {
		return 0
	}
	return h.flows[s].len
}

func (h *holder[K]) total() int64 { return int64(h.count(unknown) + h.count(known)) }

// victim returns the flow that makes room for others of the same holder: one that leaves its backend, else the least
// recently active of unknown assurance, unless these are few. nil: there is none.
func (h *holder[K]) victim() *flow {
	if h.total() == 0 {
		return nil
	}
	last := h.flows[unknown].last
	if h.count(known) == 0 || last != nil && (last.leaving != 0 || int64(h.count(unknown))*newcomers > h.total()) {
		return last
	}
	return h.flows[known].last
}

// holders are all of one kind in a shard.
type holders[K comparable] struct {
	by  int // order of flow.links
	all map[K]*holder[K]

	// most is who has most flows of each assurance, as far as is known: holders are compared when what they have
	// changes, so that it costs the same however many there are (quasi-pushout: Lin and Shung, IEEE Communications
	// Letters 1(5), 1997). nil: not known.
	most [assurances]*holder[K]
}

func newHolders[K comparable](by int) holders[K] {
	return holders[K]{by: by, all: make(map[K]*holder[K])}
}

// add gives f to the holder with this key.
func (hs *holders[K]) add(k K, f *flow) *holder[K] {
	h := hs.all[k]
	if h == nil {
		h = &holder[K]{key: k, flows: [assurances]order{{by: hs.by}, {by: hs.by}}}
		hs.all[k] = h
	}
	h.flows[f.assurance].pushFront(f)
	hs.compare(h, f.assurance)
	return h
}

// remove takes f from its holder h, which is forgotten if it has no more.
func (hs *holders[K]) remove(h *holder[K], f *flow) {
	h.flows[f.assurance].remove(f)
	hs.compare(h, f.assurance)
	if h.total() == 0 {
		delete(hs.all, h.key)
	}
}

// move changes the assurance of f, which h has.
func (hs *holders[K]) move(h *holder[K], f *flow, to assurance) {
	h.flows[f.assurance].remove(f)
	hs.compare(h, f.assurance)
	h.flows[to].pushFront(f)
	hs.compare(h, to)
}

// compare keeps most up to date after a change of what h has.
func (hs *holders[K]) compare(h *holder[K], s assurance) {
	if h.count(s) > hs.most[s].count(s) {
		hs.most[s] = h
	} else if hs.most[s] == h && h.count(s) == 0 {
		hs.most[s] = nil
	}
}

// larger returns a holder that has more than own, of this assurance and in total; nil if none is known.
func (hs *holders[K]) larger(own *holder[K], s assurance) *holder[K] {
	if m := hs.most[s]; m.count(s) > own.count(s) && m.total() > own.total() {
		return m
	}
	return nil
}

// victim returns the flow that makes room for one of own, which has its share. It is one of own's, or of a holder that
// has more; and a known one only if own has none of unknown assurance to give. nil: none is to be had.
func (hs *holders[K]) victim(own *holder[K]) *flow {
	if h := hs.larger(own, unknown); h != nil {
		return h.flows[unknown].last
	}
	f := own.victim()
	if f != nil && f.assurance == unknown {
		return f
	}
	if h := hs.larger(own, known); h != nil {
		return h.flows[known].last
	}
	return f
}

// places returns how many flows each of so many shards may have: together what the Server may have, and no more than
// half of the descriptors, since TCP and SCTP need some, too.
func (s *Server) places(shards int) int {
	most := int64(s.maxFlows())
	if s.Descriptors != nil && s.Descriptors.Limit > 0 {
		most = min(most, s.Descriptors.Limit/2)
	}
	return max(1, int(most)/shards)
}

// free returns how many more flows the shard may have: less than 0 if it took over more than that.
func (sh *shard) free() int64 {
	return min(int64(sh.places-sh.ages.len), sh.server.Descriptors.Free())
}

// makeRoom evicts a flow if the Service or the client's host has its share, or if the shard is full.
func (sh *shard) makeRoom(id lb.ID, host netip.Addr, now int64) {
	shares, service := &sh.server.Shares, id.Service()
	switch free := sh.free(); {
	case free < 0: // one goes for this flow, and one for those that are too many
		sh.evict(sh.victim(service), nil, now)
		sh.evict(sh.victim(service), nil, now)
	case free == 0:
		sh.evict(sh.victim(service), nil, now)
	case !shares.Service.Allows(sh.services.all[service].total(), 1, free):
		sh.server.LB.ExceedsShare(id, 1)
		sh.evict(sh.victim(service), &sh.count.EvictedService, now)
	}
	own := sh.clients.all[host]
	if free := sh.free(); free > 0 && !shares.Client.Allows(own.total(), 1, free) {
		sh.evict(sh.clients.victim(own), &sh.count.EvictedClient, now)
	}
}

// victim returns the flow that makes room for one of a Service: if need be the oldest one. nil: there is none.
func (sh *shard) victim(service lb.Name) *flow {
	if f := sh.services.victim(sh.services.all[service]); f != nil {
		return f
	}
	return sh.ages.last
}

// besides is victim, but not f, which is being connected.
func (sh *shard) besides(f *flow, service lb.Name) *flow {
	if v := sh.victim(service); v != f {
		return v
	}
	return nil
}

// evict closes a flow so that another can be made. reason counts those that a share is the cause of; nil: none is.
// False: there is none.
func (sh *shard) evict(f *flow, reason *atomic.Uint64, now int64) bool {
	if f == nil {
		return false
	}
	sh.count.Evicted.Add(1)
	sh.pressedUntil = now + pressing
	if reason != nil {
		reason.Add(1)
	}
	f.remember()
	f.because(lb.Evicted)
	f.close()
	return true
}

// join gives a new flow to its holders.
func (f *flow) join(service lb.Name) {
	sh := f.ln.shard
	f.service = sh.services.add(service, f)
	f.source = sh.clients.add(lb.HostOf(f.key.client.Addr()), f)
}

// leaveHolders takes the flow from its holders.
func (f *flow) leaveHolders() {
	sh := f.ln.shard
	sh.services.remove(f.service, f)
	sh.clients.remove(f.source, f)
}

// assure sets the flow's assurance, and makes the flow the most recently active one of it.
func (f *flow) assure(s assurance) {
	sh := f.ln.shard
	sh.services.move(f.service, f, s)
	sh.clients.move(f.source, f, s)
	f.assurance = s
}

// toFront makes the flow the most recently active of its assurance.
func (f *flow) toFront() {
	f.service.flows[f.assurance].toFront(f)
	f.source.flows[f.assurance].toFront(f)
	if f.oneShot {
		f.ln.shard.oneShots.toFront(f)
	}
}

// demote makes the flow the first to make room.
func (f *flow) demote() {
	f.setOneShot(false)
	f.assure(unknown)
	f.service.flows[unknown].toBack(f)
	f.source.flows[unknown].toBack(f)
}
