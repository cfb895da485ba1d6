package engine

import (
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/counters"
	"github.com/sluice-lb/sluice/internal/session"
)

// Stats is a snapshot of an engine's counters since it started, and of two gauges. Loops are read one after the other,
// so that sums may be a few events apart.
type Stats = stats[uint64, int64]

// Counters are written by one loop and read by any goroutine. The padding keeps two loops' off one cache line.
type Counters struct {
	_ [64]byte
	stats[atomic.Uint64, atomic.Int64]
	_ [64]byte
}

// AddTo adds the counters and gauges to s.
func (c *Counters) AddTo(s *Stats) { counters.Add(s, &c.stats) }

// Pass counts user messages to the backend or the client of an association, and returns what Meter.Add counts.
func (c *Counters) Pass(toBackend bool, messages uint64, bytes int) (in, out int) {
	if toBackend {
		c.MessagesIn.Add(messages)
		c.BytesIn.Add(uint64(bytes))
		return bytes, 0
	}
	c.MessagesOut.Add(messages)
	c.BytesOut.Add(uint64(bytes))
	return 0, bytes
}

// Restore adds what was counted elsewhere, without the gauges.
func (c *Counters) Restore(from Stats) { counters.Restore(&c.stats, &from) }

// stats lists the counters (C) and the gauges (G) of both engines.
type stats[C, G any] struct {
	session.Stats[C, G]

	Completed     C // associations that ended by SHUTDOWN
	ClientAborts  C // those that the client, or the way to it, ended otherwise
	BackendAborts C // those that the backend, or the way to it, ended otherwise
	Expired       C // those that were idle, or not established, for too long
	Evicted       C // those that made room for others

	MessagesIn, BytesIn   C // user messages to backends; with the packet engine each time they are sent
	MessagesOut, BytesOut C // the same to clients
	PacketsIn, PacketsOut C // packet engine: passed to backends, and to clients

	BadChecksum  C // packets dropped: CRC32c
	Malformed    C // packets dropped: lengths, ports or tags that no packet has
	Bundled      C // packets dropped: INIT, INIT ACK or SHUTDOWN COMPLETE with other chunks
	BadTag       C // packets dropped: the verification tag of no association of these ports
	Unexpected   C // packets dropped: not from this side, or not at this time
	Stray        C // packets of no association; at a frontend they are answered with ABORT
	HopsExceeded C // INITs dropped: their TTL, or hop limit, allowed no more hops
	ASCONF       C // packets refused: they would change an endpoint's addresses
	Draining     C // INITs not answered during Shutdown
	Full         C // INITs not answered: every association of a full table is in use
	Busy         C // packets dropped: the queue to send through was full
	TooLong      C // messages that ended their association: longer than 1 MiB

	SendErrors C // sends that the kernel refused
}
