package engine

import (
	"errors"
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/counters"
	"github.com/sluice-lb/sluice/lb"
)

// Stats is a snapshot of an engine's counters since it started, and of two gauges.
// Counters of different loops are read one after the other, so sums of them may be
// a few events apart.
type Stats = stats[uint64, int64]

// Counters are written by one loop and read by any goroutine. The padding keeps two
// loops' counters off one cache line.
type Counters struct {
	_ [64]byte
	stats[atomic.Uint64, atomic.Int64]
	_ [64]byte
}

// AddTo adds the counters and gauges to s.
func (c *Counters) AddTo(s *Stats) { counters.Add(s, &c.stats) }

// Restore adds what was counted elsewhere, without the gauges.
func (c *Counters) Restore(from Stats) { counters.Restore(&c.stats, &from) }

// Refused counts an association that err, of lb.Balancer.Pick, keeps from a backend.
func (c *Counters) Refused(err error) {
	switch {
	case errors.Is(err, lb.ErrNoBackend):
		c.NoBackend.Add(1)
	case errors.Is(err, lb.ErrNoLocalBackend):
		c.NoLocal.Add(1)
	case errors.Is(err, lb.ErrNotAllowed):
		c.NotAllowed.Add(1)
	default:
		c.NoService.Add(1)
	}
}

// stats lists the counters (C) and the gauges (G) of both engines.
type stats[C, G any] struct {
	Active   G // associations now, from the client's first packet to the last (gauge)
	Dialling G // those whose backend has not answered yet (gauge)

	Accepted     C // associations that clients asked for
	NoService    C // aborted: no Service has the frontend
	NoBackend    C // aborted: the Service has no backend
	NoLocal      C // aborted: the Service has none on this node, and policy Local
	NotAllowed   C // aborted: the client is not among the sources of the address
	Dials        C // attempts to reach a backend
	DialRefused  C // attempts that failed with an answer
	DialTimedOut C // attempts that nobody answered in time
	DialGaveUp   C // associations aborted because every attempt failed
	Established  C // associations that both sides agreed on

	Completed     C // associations that ended by SHUTDOWN
	ClientAborts  C // those that the client, or the way to it, ended otherwise
	BackendAborts C // those that the backend, or the way to it, ended otherwise
	Expired       C // those that were idle, or not established, for too long
	Evicted       C // those that made room for others

	MessagesIn, BytesIn   C // user messages to backends; with the packet engine each time they are sent
	MessagesOut, BytesOut C // the same to clients
	PacketsIn, PacketsOut C // packet engine: passed to backends, and to clients

	BadChecksum C // packets dropped: CRC32c
	Malformed   C // packets dropped: lengths, ports or tags that no packet has
	Bundled     C // packets dropped: INIT, INIT ACK or SHUTDOWN COMPLETE with other chunks
	BadTag      C // packets dropped: the verification tag of no association of these ports
	Unexpected  C // packets dropped: not from this side, or not at this time
	Stray       C // packets of no association; at a frontend they are answered with ABORT
	ASCONF      C // packets refused: they would change an endpoint's addresses
	Draining    C // INITs not answered during Shutdown
	Full        C // INITs not answered: every association of a full table is in use
	Busy        C // packets dropped: the queue to send through was full
	TooLong     C // messages that ended their association: longer than MaxMessage

	PausedDescriptors C // socket engine: accepting paused, no descriptor left
	PausedDials       C // socket engine: accepting paused, MaxDials reached
	AcceptErrors      C // socket engine: accept(2) failed otherwise
	Shortages         C // a dial waited for, or failed by, want of descriptors, ports or memory
	SendErrors        C // sends that the kernel refused
	ReceiveErrors     C // receives that failed
}
