package session

import (
	"errors"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// Stats lists the gauges (G) and counters (C) of every protocol that accepts and dials (see package counters).
type Stats[C, G any] struct {
	Active   G // connections or associations now, dialling ones included
	Dialling G // those whose backend has not answered yet, but for
	Held     G // those that wait since the Service has no backend, and
	Queued   G // those that wait since its backends have as many connections as they may

	Accepted     C // connections or associations that clients opened
	NoService    C // reset: no Service has the address asked for
	NoBackend    C // reset: the Service has no backend
	NoLocal      C // reset: the Service has none on this node, and policy Local
	NotAllowed   C // reset: the client is not among the sources of the address
	Dials        C // attempts to reach a backend
	DialRefused  C // attempts that failed with an answer
	DialTimedOut C // attempts that were not answered in time
	DialGaveUp   C // reset: every attempt failed
	DialEvicted  C // reset: the oldest dial, whose backends were silent, to make room
	Established  C // those whose backend answered

	Holds       C // clients that were held
	HoldFull    C // of NoBackend, those that were not held, since as many were as may
	HoldExpired C // of NoBackend, those that were held for as long as the Service requests
	HoldLeft    C // clients that have left while they were held

	Queues        C // clients that had to wait in the queue of their Service
	QueueFull     C // reset: as many waited as may
	QueueTimedOut C // reset: they have waited for as long as the Service requests
	QueueLeft     C // clients that have left while they waited

	Refusals[C]
	Limits[C]

	// Connections that policies of their Services have reset.
	DrainReset        C // their endpoint had left
	IdleTimedOut      C // no byte for the idle timeout
	DurationExceeded  C // open for the longest time allowed
	HalfCloseTimedOut C // one side had ended its stream, and no byte came for a time

	PausedDescriptors C // accepting paused: file descriptors exhausted
	PausedDials       C // accepting paused: MaxDials reached
	AcceptErrors      C // accept(2) failed otherwise
	NoPorts           C // reset: no local port was free towards any backend, and too many waited, or one for too long
	Shortages         C // a dial waited for, or failed by, lack of file descriptors, ports or memory
}

// Refusals count the clients that were reset because their Service, or they, had their share already: of
// descriptors, or of dials.
type Refusals[C any] struct {
	ServiceConns, ServiceDials C
	ClientConns, ClientDials   C
}

// Limits count the clients that were reset because of what their Service requests.
type Limits[C any] struct {
	OverConnections       C // it has as many connections as it may
	OverClientConnections C // they have
	OverClientRate        C // they open more in a second than they may
}

// Counters are written by one loop and read by any goroutine.
type Counters = Stats[atomic.Uint64, atomic.Int64]

// Refuse counts a client that err, of Ladder.Next or balancer.Balancer.Pick, keeps from a backend.
func Refuse(count *Counters, err error) {
	switch {
	case errors.Is(err, balancer.ErrNoBackend):
		count.NoBackend.Add(1)
	case errors.Is(err, balancer.ErrNoLocalBackend):
		count.NoLocal.Add(1)
	case errors.Is(err, balancer.ErrNotAllowed):
		count.NotAllowed.Add(1)
	case errors.Is(err, balancer.ErrFull), errors.Is(err, balancer.ErrQueueFull):
		count.QueueFull.Add(1)
	case errors.Is(err, errGaveUp):
		count.DialGaveUp.Add(1)
	default:
		count.NoService.Add(1)
	}
}

// overLimit counts a client that err, of Queues.Admit, keeps from its Service, and says how its connection ends.
func overLimit(count *Counters, err error) lb.End {
	switch {
	case errors.Is(err, balancer.ErrServiceLimit):
		count.OverConnections.Add(1)
		return lb.OverConnections
	case errors.Is(err, balancer.ErrClientLimit):
		count.OverClientConnections.Add(1)
		return lb.OverClient
	}
	count.OverClientRate.Add(1)
	return lb.OverRate
}
