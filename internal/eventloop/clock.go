package eventloop

import "time"

// epoch makes Now start near zero, which keeps wheel arithmetic away from overflow.
var epoch = time.Now()

// Now returns monotonic time in nanoseconds since the process started: the clock of every loop, of a Flow and of
// affinity. It costs one vDSO call.
func Now() int64 { return int64(time.Since(epoch)) }

// MaxBusyPoll bounds what Group.BusyPoll takes. What is worth it is tens of microseconds.
const MaxBusyPoll = 10 * time.Millisecond
