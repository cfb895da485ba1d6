package eventloop

import "sync/atomic"

// Budget bounds the descriptors that flows may hold, over all loops and
// protocols, so that the rest of the process (logs, HTTP, iptables) always finds
// some left. The zero Budget is unlimited.
type Budget struct {
	// Limit is the most descriptors that flows hold at a time; 0 means no limit.
	// It is set before the first Take.
	Limit int64

	used   atomic.Int64
	denied atomic.Uint64
}

// Take reserves n descriptors. False means that they would exceed the limit;
// nothing is reserved then and the refusal is counted.
func (b *Budget) Take(n int64) bool {
	if used := b.used.Add(n); b.Limit > 0 && used > b.Limit {
		b.used.Add(-n)
		b.denied.Add(1)
		return false
	}
	return true
}

// Adopt reserves n descriptors that are open already, beyond the limit if need be.
func (b *Budget) Adopt(n int64) { b.used.Add(n) }

// Give returns n descriptors that Take or Adopt reserved.
func (b *Budget) Give(n int64) { b.used.Add(-n) }

// Used returns how many descriptors are reserved.
func (b *Budget) Used() int64 { return b.used.Load() }

// Denied returns how often Take returned false.
func (b *Budget) Denied() uint64 { return b.denied.Load() }
