package accesslog

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/look"
)

const (
	// queued is how many lines of a loop wait at the most.
	queued = 1024

	// gather is how long a line may wait for others, which are written with it: to wake a goroutine for each costs a
	// busy loop a third of its connections.
	gather = 10 * time.Millisecond
)

// entry is what has ended, and when.
type entry struct {
	look.Ended
	at time.Time
}

// queue has what one loop has ended. One goroutine puts, another one takes.
type queue struct {
	once    sync.Once
	entries []entry
	put     atomic.Uint64 // how many were
	taken   atomic.Uint64
	wake    chan struct{} // there is one where there was none, or the queue is half full
}

// start makes an empty queue ready.
func (q *queue) start() {
	q.entries, q.wake = make([]entry, queued), make(chan struct{}, 1)
}

// add puts what has ended into the queue, unless that is full.
func (q *queue) add(e *look.Ended, at time.Time) bool {
	n := q.put.Load()
	if n-q.taken.Load() == queued {
		return false
	}
	q.entries[n%queued] = entry{*e, at}
	q.put.Store(n + 1)
	// Who takes says so before it looks whether there is more, so that one of both knows.
	if waiting := n + 1 - q.taken.Load(); waiting == 1 || waiting == queued/2 {
		select {
		case q.wake <- struct{}{}:
		default: // it is about to take
		}
	}
	return true
}

// take passes what is in the queue to use, one after the other.
func (q *queue) take(use func(*entry)) {
	for n := q.taken.Load(); n < q.put.Load(); n++ {
		e := &q.entries[n%queued]
		use(e)
		*e = entry{} // its names and endpoints are not kept
		q.taken.Store(n + 1)
	}
}
