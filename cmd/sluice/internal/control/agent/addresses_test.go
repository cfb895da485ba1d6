package agent

import (
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestRandomAddresses is TestRandomChanges without steering.
func TestRandomAddresses(t *testing.T) {
	testbed.Sequential(t)
	r := seeded(t)
	a, k, h := direct(t)
	for range 3000 {
		services := someServices(r, false, lb.TCP, lb.UDP)
		mustApply(t, a, services...)
		k.calls = nil
		table := a.planner.table
		listening := 0
		for _, s := range table.Services() {
			for _, addr := range s.Addresses {
				if !slices.Contains(h.held, addr.Addr.Addr()) {
					t.Fatalf("%s of %s is not held", addr.Addr, s.ID)
				}
				if len(s.Backends) > 0 {
					listening++
				}
			}
		}
		if got := len(k.open); got != listening {
			t.Fatalf("%d sockets open, want %d", got, listening)
		}
	}
}
