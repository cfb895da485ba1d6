package node

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
)

// GOGC, the percentage of what is in use that may be allocated until the collector runs. Measured with 5,000 Services
// of 10 endpoints in mode nftables, and with 100,000 of 5 in user space.
const (
	// usualGC has the collector start sooner than by default: what stays is most of the memory, 61 MB of 5,000
	// Services. With 40 such a process had 128 MiB, with 25 it has 120, and a change costs as much. Relaying
	// allocates nothing, so that traffic does not make it run.
	usualGC = 25

	// hugeGC is for more than hugeHeap bytes in use, as of 30,000 Services. While the collector runs, who allocates
	// helps it, the more the less may be allocated until it is to be done: with 25 changes of those moments took 66
	// and 85 ms, with 45 it was 44 and 63.
	hugeGC   = 45
	hugeHeap = 192 << 20

	// startGC is for a process that reads its Services for the first time, of which nothing is known yet: with 100
	// the most memory was 1,175 and 1,281 MiB with 100,000 Services, with 50 it was 1,116 and 1,122; they are served
	// half a second later, of six.
	startGC = 50

	// largeGC is for the addition of thousands, hugeLargeGC if there is more than hugeHeap already.
	largeGC     = 100
	hugeLargeGC = 50
)

// Collect has the garbage collector run as is good for this program. GOGC in the environment takes precedence.
func Collect() { collect(usualGC, hugeGC) }

// CollectStart has the collector run less often until done is called: of what a start allocates much stays, so that the
// collector takes a quarter of the time and finds little.
func CollectStart() (done func()) {
	collect(startGC, startGC)
	return Collect
}

// CollectLess is CollectStart for a large change.
func CollectLess() (done func()) {
	collect(largeGC, hugeLargeGC)
	return Collect
}

// collect sets GOGC to one of two values.
func collect(percent, huge int) {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	if metrics.Read(live); live[0].Value.Kind() == metrics.KindUint64 && live[0].Value.Uint64() > hugeHeap {
		percent = huge
	}
	debug.SetGCPercent(percent)
}
