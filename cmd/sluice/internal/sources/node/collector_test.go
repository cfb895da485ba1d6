package node

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// A start has room for what it allocates, by how much is in use, and GOGC is as usual again when it is over.
func TestCollectStart(t *testing.T) {
	for live, want := range map[uint64]int{0: mostStartGC, 4 << 20: mostStartGC, 64 << 20: 150, 96 << 20: 100,
		192 << 20: 50, 1 << 30: hugeGC, math.MaxUint64: hugeGC} {
		if got := startPercent(live); got != want {
			t.Errorf("%d bytes in use: GOGC %d, want %d", live, got, want)
		}
	}
	if os.Getenv("GOGC") != "" {
		t.Skip("GOGC is in the environment, and so takes precedence")
	}
	before := debug.SetGCPercent(usualGC)
	defer debug.SetGCPercent(before)
	runtime.GC() // what a test before had in use
	s := new(starting)
	s.again()
	if got := percent(); got != mostStartGC {
		t.Errorf("GOGC is %d when a start begins, want %d", got, mostStartGC)
	}
	much := make([]byte, startRoom) // GOGC is 100 with as many, and usualGC afterwards
	for i := 0; live() < uint64(len(much)) || percent() != startPercent(live()); i++ {
		if i == 100 {
			t.Fatalf("GOGC is %d with %d bytes in use, want %d", percent(), live(), startPercent(live()))
		}
		runtime.GC()
		runtime.Gosched()
	}
	s.end()
	for range 3 { // what the start has left to be called is not heeded
		runtime.GC()
		runtime.Gosched()
	}
	if got := percent(); got != usualGC {
		t.Errorf("GOGC is %d after the start with %d bytes in use, want %d", got, live(), usualGC)
	}
	runtime.KeepAlive(much)
}

// percent returns GOGC.
func percent() int {
	is := debug.SetGCPercent(usualGC)
	debug.SetGCPercent(is)
	return is
}
