package node

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// GOGC, the percentage of what is in use that may be allocated until the collector runs. Measured with 5,000 Services
// of 10 endpoints in mode nftables, and with 100,000 of 5 in user space (bench/results/control.md).
const (
	// usualGC has the collector start sooner than by default: what stays is most of the memory, 61 MB of 5,000
	// Services. With 40 such a process had 128 MiB, with 25 it has 120, and a change costs as much. Relaying
	// allocates nothing, so that traffic does not make it run.
	usualGC = 25

	// hugeGC is for more than hugeHeap bytes in use, as of 30,000 Services. While the collector runs, who allocates
	// helps it, the more the less may be allocated until it is to be done: with 25 changes of those moments took 66
	// and 85 ms, with 45 it was 44 and 63. It is for a start and a large change, too: with 50 the most memory was 1,061
	// to 1,149 MiB with 100,000 Services, in five starts, and 1,064 to 1,100 in three with 45.
	hugeGC   = 45
	hugeHeap = 192 << 20

	// startRoom is how many bytes a start may allocate until the collector runs, where that is more than hugeGC per
	// cent of what is in use, and less than mostStartGC. With 10,000 Services of 10 endpoints from manifests, of which
	// some 400 MB are allocated, it runs 11 times in place of 42: they are served after 2.2 s, where it was 3.0, on one
	// core (medians of seven starts of each, in turns). The most memory is 207 MB for 171; with 2,000 it is 65 for 58.
	startRoom   = 96 << 20
	mostStartGC = 250
)

// Collect has the garbage collector run as is good for this program. GOGC in the environment takes precedence.
func Collect() {
	if os.Getenv("GOGC") != "" {
		return
	}
	percent := usualGC
	if live() > hugeHeap {
		percent = hugeGC
	}
	debug.SetGCPercent(percent)
}

// CollectStart has the collector run less often until done is called, which is to be called once: of what a start
// allocates much stays, so that the collector takes a quarter of the time and finds little.
func CollectStart() (done func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	s := new(starting)
	s.again()
	return s.end
}

// starting is a process that starts. It sets GOGC anew after each run of the collector.
type starting struct {
	mu   sync.Mutex
	over bool
}

// again sets GOGC for the next run, and has itself called after it.
func (s *starting) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	runtime.AddCleanup(&cycle{s}, func(s *starting) { s.again() }, s)
	debug.SetGCPercent(startPercent(live()))
}

func (s *starting) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	Collect()
}

// cycle is garbage from the beginning, so that the next run of the collector finds it.
type cycle struct{ _ *starting }

// startPercent returns GOGC for a start that has so many bytes in use.
func startPercent(live uint64) int {
	return min(max(hugeGC, int(startRoom*100/max(live, 1))), mostStartGC)
}

// live returns how many bytes were in use when the collector ran last.
func live() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	if metrics.Read(sample); sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
