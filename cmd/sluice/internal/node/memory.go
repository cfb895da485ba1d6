package node

import (
	"os"
	"runtime/debug"
)

// startGC is GOGC while a process reads its Services for the first time.
const startGC = 200

// CollectLess has the garbage collector run less often until done is called: of what a start
// allocates much stays, so that the collector takes a quarter of the time and finds little. done
// returns to the kernel what the start took beyond. GOGC in the environment takes precedence.
func CollectLess() (done func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	usual := debug.SetGCPercent(startGC)
	return func() {
		debug.SetGCPercent(usual)
		debug.FreeOSMemory()
	}
}
