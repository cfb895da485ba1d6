package eventloop

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// ErrDescriptors is why a frontend gets no socket while other sockets are open.
var ErrDescriptors = errors.New("too few file descriptors")

// Budget bounds the file descriptors that flows and the sockets of frontends hold, over all loops and protocols, so
// that the rest of the process (logs, HTTP, netlink) always finds some left. Of a nil Budget as many can be had.
type Budget struct {
	Limit int64 // 0: none; set before the first Take

	used      atomic.Int64
	exhausted atomic.Uint64

	mu        sync.Mutex
	listening int64 // that Listen has reserved; written with mu held
}

// Take reserves n file descriptors. False, which Exhausted counts: they would exceed the limit.
func (b *Budget) Take(n int64) bool {
	if b == nil {
		return true
	}
	if used := b.used.Add(n); b.Limit > 0 && used > b.Limit {
		b.used.Add(-n)
		b.exhausted.Add(1)
		return false
	}
	return true
}

// Adopt reserves n file descriptors that are open already, beyond the limit if need be.
func (b *Budget) Adopt(n int64) { b.Give(-n) }

// Give returns n file descriptors that Take or Adopt reserved.
func (b *Budget) Give(n int64) {
	if b != nil {
		b.used.Add(-n)
	}
}

// Free returns how many file descriptors can be taken; without a limit as many as a process can have on any system.
func (b *Budget) Free() int64 {
	if b == nil || b.Limit <= 0 {
		return math.MaxInt32
	}
	return max(b.Limit-b.used.Load(), 0)
}

// Used returns how many file descriptors are reserved.
func (b *Budget) Used() int64 { return b.used.Load() }

// Exhausted returns how often Take found too few.
func (b *Budget) Exhausted() uint64 { return b.exhausted.Load() }

// Listen reserves file descriptors for the sockets of one more frontend, and returns how many: n, one for each loop,
// while all frontends have a quarter of the limit, and one beyond that, since a Service on one loop is better than
// none. They get no more than three quarters, so that there are some for flows. The first few are not of the limit
// but of what the rest of the process has: flows that have taken all of it keep no new Service from being served. An
// error, which Exhausted counts too, wraps ErrDescriptors.
func (b *Budget) Listen(n int64) (int64, error) {
	if b == nil {
		return n, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 1 && !b.ample(n) {
		n = 1
	}
	if b.Limit > 0 && b.listening+n > b.most() {
		b.exhausted.Add(1)
		return 0, fmt.Errorf("%w: sockets of Services have their part, %d of %d", ErrDescriptors, b.listening, b.Limit)
	}
	if !b.Take(b.counted(b.listening+n) - b.counted(b.listening)) {
		return 0, fmt.Errorf("%w: connections and flows have all %d", ErrDescriptors, b.Limit)
	}
	b.listening += n
	return n, nil
}

// Widen reserves file descriptors for n more sockets of a frontend that has some. False: frontends have a quarter of
// the limit, or none is left.
func (b *Budget) Widen(n int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ample(n) || !b.Take(b.counted(b.listening+n)-b.counted(b.listening)) {
		return false
	}
	b.listening += n
	return true
}

// ample reports whether frontends have so few sockets that n more may be for one of them. The caller holds b.mu.
func (b *Budget) ample(n int64) bool { return b.Limit <= 0 || b.listening+n <= max(b.Limit/4, b.few()) }

// Listening notes n sockets of frontends that are open already, beyond the limit if need be; less than 0: that are
// closed.
func (b *Budget) Listening(n int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Adopt(b.counted(b.listening+n) - b.counted(b.listening))
	b.listening += n
}

// Listened returns how many file descriptors the sockets of frontends have, and how many more they may have; without a
// limit as many as a process can have on any system.
func (b *Budget) Listened() (have, free int64) {
	if b == nil {
		return 0, math.MaxInt32
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Limit <= 0 {
		return b.listening, math.MaxInt32
	}
	return b.listening, max(b.most()-b.listening, 0)
}

// most is how many file descriptors the sockets of frontends may have.
func (b *Budget) most() int64 { return max(b.Limit/4*3, b.few()) }

// few is how many sockets of frontends are not of the limit.
func (b *Budget) few() int64 { return max(b.Limit/16, 4) }

// counted returns how many of so many sockets of frontends are of the limit.
func (b *Budget) counted(listening int64) int64 { return max(listening-b.few(), 0) }
