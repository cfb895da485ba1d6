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
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, want := range []time.Duration{50 * time.Microsecond, MaxBusyPoll, 0} {
		if err := g.BusyPoll(want); errors.Is(err, errors.ErrUnsupported) {
			t.Skipf("NOT TESTED: this needs Linux 6.9: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		for _, l := range g.Loops() {
			var got pollParams
			if err := l.pollParams(unix.EPIOCGPARAMS, &got); err != nil {
				t.Fatal(err)
			}
			if time.Duration(got.usecs)*time.Microsecond != want {
				t.Errorf("loop %d polls for %d us, want %v", l.index, got.usecs, want)
			}
		}
	}
	// Those that wait must go on as before.
	if err := g.BusyPoll(100 * time.Microsecond); err != nil {
		t.Fatal(err)
	}
	for _, l := range g.Loops() {
		if err := l.Do(func() {}); err != nil {
			t.Error(err)
		}
	}
}
