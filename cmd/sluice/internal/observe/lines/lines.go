package lines

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Queued is how many lines wait in a queue at the most.
	Queued = 1024

	// CloseTimeout is how long the end of the program waits for what takes no more.
	CloseTimeout = time.Second

	// maxWaiting is how many bytes wait in a Writer at the most, unless one line has more.
	maxWaiting = 1 << 20
)

// Queue has entries that become lines. One goroutine puts, another one serves.
type Queue[T any] struct {
	entries []T
	put     atomic.Uint64 // how many were
	taken   atomic.Uint64
	wake    chan struct{} // gets one entry when the queue is no longer empty, or half full
}

// Start makes an empty queue ready.
func (q *Queue[T]) Start() {
	q.entries, q.wake = make([]T, Queued), make(chan struct{}, 1)
}

// Put puts an entry into the queue, or returns false if the queue is full. It does not wait.
func (q *Queue[T]) Put(e T) bool {
	n := q.put.Load()
	if n-q.taken.Load() == Queued {
		return false
	}
	q.entries[n%Queued] = e
	q.put.Store(n + 1)
	// Who takes says so before it looks whether there is more, so that one of both knows.
	if waiting := n + 1 - q.taken.Load(); waiting == 1 || waiting == Queued/2 {
		select {
		case q.wake <- struct{}{}:
		default: // it is about to take
		}
	}
	return true
}

// Serve passes entries to use, and calls flush after the last one that waits, until ended is closed and the queue is
// empty. An entry may wait for others for the time gather.
func (q *Queue[T]) Serve(ended <-chan struct{}, gather time.Duration, use func(*T), flush func()) {
	await := func(d <-chan time.Time) (end bool) {
		select {
		case <-q.wake:
		case <-d:
		case <-ended:
			return true
		}
		return false
	}
	timer := time.NewTimer(gather)
	defer timer.Stop()
	for end := false; !end; {
		if end = await(nil); !end && gather > 0 {
			timer.Reset(gather)
			end = await(timer.C)
		}
		q.take(use)
		flush()
	}
}

// take passes what is in the queue to use, one after the other.
func (q *Queue[T]) take(use func(*T)) {
	for n := q.taken.Load(); n < q.put.Load(); n++ {
		e := &q.entries[n%Queued]
		use(e)
		*e = *new(T) // what it refers to is not kept
		q.taken.Store(n + 1)
	}
}

// Within reports whether f returns within CloseTimeout. Otherwise f ends with the process.
func Within(f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(CloseTimeout):
		return false
	}
}

// Writer writes lines in a goroutine of its own. Make it by NewWriter.
type Writer struct {
	to      io.Writer
	dropped *atomic.Uint64
	waiting atomic.Int64 // bytes
	ended   chan struct{}
	serving sync.WaitGroup

	mu    sync.Mutex // guards puts, never a write
	queue Queue[[]byte]
}

// NewWriter returns a Writer to to, which adds to dropped the lines that it loses. The caller ends it by Close.
func NewWriter(to io.Writer, dropped *atomic.Uint64) *Writer {
	w := &Writer{to: to, dropped: dropped, ended: make(chan struct{})}
	w.queue.Start()
	w.serving.Go(func() { w.queue.Serve(w.ended, 0, w.write, func() {}) })
	return w
}

// Write takes a line, which is lost if too many wait. It does not wait, and may be called from anywhere.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := int64(len(line))
	if before := w.waiting.Load(); before > 0 && before+n > maxWaiting || !w.queue.Put(append([]byte(nil), line...)) {
		w.dropped.Add(1)
	} else {
		w.waiting.Add(n)
	}
	return len(line), nil
}

func (w *Writer) write(line *[]byte) {
	if _, err := w.to.Write(*line); err != nil {
		w.dropped.Add(1)
	}
	w.waiting.Add(-int64(len(*line)))
}

// Close writes what waits, for CloseTimeout at the most, and reports whether all was taken. It is called once.
func (w *Writer) Close() bool {
	close(w.ended)
	return Within(w.serving.Wait)
}
