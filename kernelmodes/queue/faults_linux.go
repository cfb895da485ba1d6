package queue

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
	"github.com/sluice-lb/sluice/lb"
)

// Where many connections to an address come, and it does not matter when they end, some are followed and the others
// are not, so that they cost little more than where the kernel chooses (nftables.Ask.Follow). Of each endpoint that
// gets any one is followed every few milliseconds, so that one that fails is known before the clients of the others
// send again. From then on all are followed, and those that were not are found in conntrack's table: each client whose
// endpoint is silent gets another one when it sends again.

const (
	// tryEvery is how long an endpoint may get connections of which none is followed. With the time that its answer may
	// take, twice, it is less than the second after which a client sends again (RFC 6298, 2.1).
	tryEvery = int64(50 * time.Millisecond)

	// faultLasts is how long all connections to an address are followed after a failure, and faultBegins how long after
	// the first of them there may be some that were not.
	faultLasts  = int64(10 * time.Second)
	faultBegins = int64(time.Second)

	// manyFaults is of how many addresses failures are known. One may take the place of another.
	manyFaults = 1 << 10

	millisecond = int64(time.Millisecond)
)

// faults has when endpoints began to fail, and when one has failed last, in milliseconds of 32 bits each, by the
// address that was asked. Zero: never.
type faults [manyFaults]atomic.Uint64

func (f *faults) at(k *flowKey) *atomic.Uint64 {
	return &f[maphash.Comparable(flowSeed, struct {
		asked    [16]byte
		port     uint16
		protocol lb.Protocol
	}{k.asked, k.askedPort, k.protocol})%manyFaults]
}

// note notes a failure, and reports whether failures have just begun.
func (f *faults) note(k *flowKey, now int64) (begins bool) {
	at, ms := f.at(k), uint32(now/millisecond)
	was := at.Load()
	first := uint32(was >> 32)
	if was == 0 || ms-uint32(was) > uint32(faultLasts/millisecond) {
		first = ms
	}
	at.Store(uint64(first)<<32 | uint64(ms))
	return ms-first <= uint32(faultBegins/millisecond)
}

// last reports whether the last failure was a while ago at most.
func (f *faults) last(k *flowKey, now int64) bool {
	was := f.at(k).Load()
	return was != 0 && uint32(now/millisecond)-uint32(was) <= uint32(faultLasts/millisecond)
}

// tries has when an endpoint had a connection last that was followed, in milliseconds, by its number.
type tries [1 << 16]atomic.Uint32

// due reports whether the next one is to be, and notes that it is.
func (t *tries) due(nth uint32, now int64) bool {
	at, ms := &t[nth%uint32(len(t))], uint32(now/millisecond)
	due := ms-at.Load() >= uint32(tryEvery/millisecond)
	if due {
		at.Store(ms)
	}
	return due
}

// faulty notes that an endpoint has failed.
func (s *Server) faulty(k *flowKey) {
	s.suspect()
	if s.following.faults.note(k, s.Now()) && s.unfollowed.Load() > 0 && s.following.cannot == nil {
		notify(s.following.failing)
	}
}

// passes reports whether a flow need not be followed that goes to the endpoint of a number.
func (s *Server) passes(p *nfqueue.Packet, k *flowKey, one *flow, number uint32) bool {
	if k.isUDP() {
		return one.endsUnheard()
	}
	return s.Ask.Unfollowed(p.Mark) && k.isTCP() && one.failed == nil && !one.choice.CountsInFlight() &&
		!s.following.faults.last(k, one.since) &&
		!s.following.tries[family(p.Client.Addr())].due(number/(s.Ask.Mask&-s.Ask.Mask), one.since)
}

// endsUnheard reports whether no policy goes by what becomes of a flow of UDP.
func (one *flow) endsUnheard() bool {
	logs, _ := one.choice.Policies().Logs()
	return !logs && !one.choice.CountsInFlight() && !one.choice.ExpectsAnswers()
}

// pass lets one go. That of a connection is known as where it has answered.
func (s *Server) pass(k *flowKey, one *flow, number uint32) {
	if k.isTCP() {
		s.unfollowed.Add(1)
		s.following.answering.add(k, number)
	}
	one.end(k)
}
