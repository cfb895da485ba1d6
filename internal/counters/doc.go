// Package counters sums what several loops count, each on its own. A protocol lists its counters once, in
// a struct of two type parameters:
//
//	type stats[C, G any] struct {
//		Active   G // a gauge
//		Accepted C // a counter
//	}
//
//	type Stats = stats[uint64, int64]                     // a snapshot
//	type counters = stats[atomic.Uint64, atomic.Int64]    // written by one loop, read by any goroutine
//
// Fields are exported; structs of the same form may be embedded. Summing uses reflection, which is for
// scrapes and not for the hot path.
package counters
