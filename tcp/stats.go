package tcp

import (
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/session"
)

// Stats is a snapshot of a Server's counters since it started, and of two gauges. Loops are read one after the other,
// so that sums may be a few events apart.
type Stats = stats[uint64, int64]

// counts are written by one loop and read by any goroutine. The padding keeps two loops' off one cache line.
type counts struct {
	stats[atomic.Uint64, atomic.Int64]
	_ [64]byte
}

// stats lists the counters (C) and the gauges (G).
type stats[C, G any] struct {
	session.Stats[C, G]

	ClientResets  C // relays ended by an error on the client's side
	BackendResets C // relays ended by an error on the backend's side
	BytesIn       C // bytes from clients to backends
	BytesOut      C // bytes from backends to clients

	Spread      C // connections that another loop serves than has accepted them, since it had fewer
	FromClient  C // dials from the client's own address, of Services that request that (Policies.Transparent)
	FromNode    C // those from this node's, where that does not work
	Transparent G // connections whose backends see the client's own address
}
