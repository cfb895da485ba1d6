package testbed

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
)

// Load is what clients do again and again while a test changes something.
type Load struct {
	t     testing.TB
	stop  chan struct{}
	end   sync.Once
	doing sync.WaitGroup
	done  atomic.Int64
}

// Repeat has clients, each in a goroutine of its own, call ask again and again until [Load.Stop] or the end of the
// test. The test fails with the first error of a client, which then stops.
func Repeat(t testing.TB, clients int, ask func() error) *Load {
	l := &Load{t: t, stop: make(chan struct{})}
	for range clients {
		l.doing.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				if err := ask(); err != nil {
					t.Errorf("after %d times: %v", l.done.Load(), err)
					l.done.Store(math.MaxInt64 / 2) // a test that waits for more goes on
					return
				}
				l.done.Add(1)
			}
		})
	}
	t.Cleanup(l.Stop)
	return l
}

// Done returns how often the clients succeeded, a number beyond all after a failure.
func (l *Load) Done() int64 { return l.done.Load() }

// More waits until the clients have succeeded n times more.
func (l *Load) More(n int64) {
	l.t.Helper()
	until := l.Done() + n
	Eventually(l.t, "more is asked", func() bool { return l.Done() >= until })
}

// Stop ends the clients and waits for them. The test fails if they have never succeeded.
func (l *Load) Stop() {
	l.end.Do(func() {
		close(l.stop)
		l.doing.Wait()
		if l.Done() == 0 && !l.t.Failed() {
			l.t.Error("nothing was asked meanwhile: the test tests nothing")
		}
	})
}
