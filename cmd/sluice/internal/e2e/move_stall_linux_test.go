package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// stall finds out for how long threads of the test and of the program were ready to run
// and did not get a CPU, as happens when the machine is busy with others, so that this is
// not taken for a fault of the program.
type stall struct {
	mu   sync.Mutex
	seen []time.Time // when it was over
	long []time.Duration

	looked atomic.Int64 // until when, ns
}

func (s *stall) watch(stop <-chan struct{}, pids ...int) {
	const tick = 5 * time.Millisecond
	waited := make(map[string]time.Duration) // by thread, so far
	for last := time.Now(); ; {
		select {
		case <-stop:
			return
		case <-time.After(tick):
		}
		now := time.Now()
		late := now.Sub(last) - tick
		for _, pid := range pids {
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
			for _, path := range threads {
				text, _ := os.ReadFile(path) // time on a CPU, time waiting for one, slices (sched-stats.rst)
				if w := strings.Fields(string(text)); len(w) == 3 {
					ns, _ := strconv.ParseInt(w[1], 10, 64)
					if was, known := waited[path]; known {
						late = max(late, time.Duration(ns)-was)
					}
					waited[path] = time.Duration(ns)
				}
			}
		}
		if late > tick {
			s.mu.Lock()
			s.seen, s.long = append(s.seen, time.Now()), append(s.long, late)
			s.mu.Unlock()
		}
		last = time.Now()
		s.looked.Store(last.UnixNano())
	}
}

// during returns for how long a thread waited between start and end, which it may have
// to wait to see.
func (s *stall) during(start, end time.Time) (sum time.Duration) {
	for deadline := time.Now().Add(time.Second); s.looked.Load() < end.Add(10*time.Millisecond).UnixNano() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // a pause between two looks
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.seen) - 1; i >= 0 && s.seen[i].After(start); i-- {
		sum += s.long[i]
	}
	return sum
}

func (s *stall) longest() (most time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.long {
		most = max(most, d)
	}
	return most
}
