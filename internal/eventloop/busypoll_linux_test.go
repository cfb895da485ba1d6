package eventloop

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestBusyPoll asks the kernel what it will do.
func TestBusyPoll(t *testing.T) {
	g, err := NewGroup(2)
	check(t, err)
	defer g.Close()
	for _, want := range []time.Duration{50 * time.Microsecond, MaxBusyPoll, 0} {
		if err := g.BusyPoll(want); errors.Is(err, errors.ErrUnsupported) {
			t.Skipf("NOT TESTED: this needs Linux 6.9: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		for _, l := range g.Loops() {
			var got pollParams
			check(t, l.pollParams(unix.EPIOCGPARAMS, &got))
			if time.Duration(got.usecs)*time.Microsecond != want {
				t.Errorf("loop %d polls for %d us, want %v", l.index, got.usecs, want)
			}
		}
	}
	// Those that wait must go on as before.
	check(t, g.BusyPoll(100*time.Microsecond))
	for _, l := range g.Loops() {
		check(t, l.Do(func() {}))
	}
}
