package notify

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// TestWatchdogOf: the first process of a service is named; those that follow inherit the limit.
func TestWatchdogOf(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
		fails     bool
	}{
		{"", "", 0, false},
		{"", strconv.Itoa(os.Getpid()), 0, false},
		{"2000000", strconv.Itoa(os.Getpid()), 2 * time.Second, false},
		{"2000000", "", 2 * time.Second, false},
		{"2000000", "1", 0, false},
		{"soon", "", 0, true},
		{"-1", "", 0, true},
	} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		got, err := Watchdog()
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("limit %q of process %q: %v, %v; want %v", c.usec, c.pid, got, err, c.want)
		}
		if left := os.Getenv("WATCHDOG_PID"); c.want > 0 && left != "" {
			t.Errorf("a successor would see process %q", left)
		}
	}
}
