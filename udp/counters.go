package udp

import (
	"errors"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb/balancer"
)

// Stats is a snapshot of a Server's counters since it started, and of a gauge.
// Counters of different loops are read one after the other, so sums of them may
// be a few events apart.
type Stats = stats[uint64, int64]

// stats lists the counters (C) and the gauge (G).
type stats[C, G any] struct {
	Active G // flows now (gauge)
	Held   G // clients of which datagrams are kept, since the Service has no backend (gauge)

	Created        C // flows that got a backend
	Resumed        C // of these, flows that were remembered
	Expired        C // flows closed since they were idle
	Parked         C // flows closed early, and remembered, as many others had an answer
	Evicted        C // flows closed to make room for others
	EvictedService C // of these, those whose Service, or another that wanted room, had its share
	EvictedClient  C // of these, those whose client address, or another that wanted room, had its share
	Moved          C // flows that left a backend which was gone, bad or silent
	Refused        C // backends that refused, or could not be reached
	NotAnswered    C // times that an answer was due, of Services whose backends are to answer

	DatagramsIn, BytesIn   C // sent to backends
	DatagramsOut, BytesOut C // sent to clients
	Resent                 C // of DatagramsIn, those a backend had refused before

	HoldFull    C // not kept, and counted by NoBackend, too: of too many clients, or too much
	HoldExpired C // clients whose datagrams were kept for as long as the Service requests; NoBackend counts them

	NoService    C // dropped: no Service has the frontend
	NoBackend    C // dropped: the Service has no backend
	NoLocal      C // dropped: the Service has none on this node, and policy Local
	NotAllowed   C // dropped: the client is not among the sources of the address
	NoDescriptor C // dropped: no descriptor or memory, and nothing to evict
	NoPort       C // dropped: no ephemeral port, now or a moment ago
	Unreachable  C // dropped: every backend that was tried refused, or no route to the client
	Draining     C // dropped: from a new client during Shutdown
	HopsExceeded C // dropped: their TTL, or hop limit, allowed no more hops, here or on the way to the backend
	Malformed    C // dropped: no source port, so that the client cannot be answered
	Busy         C // dropped: the socket to send through was full
	TooLong      C // dropped: larger than the path allows

	SendErrors C // sends that the kernel refused, whatever became of the datagram
}

// loopCounters are written by one loop and read by any goroutine. The padding keeps two
// loops' counters off one cache line.
type loopCounters struct {
	_ [64]byte
	stats[atomic.Uint64, atomic.Int64]
	_ [64]byte
}

// reason returns the counter for datagrams that err keeps from a backend.
func (c *loopCounters) reason(err error) *atomic.Uint64 {
	switch {
	case errors.Is(err, balancer.ErrNoService):
		return &c.NoService
	case errors.Is(err, balancer.ErrNoBackend):
		return &c.NoBackend
	case errors.Is(err, balancer.ErrNoLocalBackend):
		return &c.NoLocal
	case errors.Is(err, balancer.ErrNotAllowed):
		return &c.NotAllowed
	case errors.Is(err, errTried):
		return &c.Unreachable
	case errors.Is(err, errNoPort), noPort(err):
		return &c.NoPort
	}
	return &c.NoDescriptor
}
