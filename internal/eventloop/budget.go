package eventloop

import (
	"math"
	"sync/atomic"
)

// Budget bounds the file descriptors that flows hold, over all loops and protocols, so that the rest of the process
// (logs, HTTP, iptables) always finds some left. Of a nil Budget as many can be had.
type Budget struct {
	Limit int64 // 0: none; set before the first Take

	used      atomic.Int64
	exhausted atomic.Uint64
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
