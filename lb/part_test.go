package lb

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestPartIsAMap compares a part with a map, through growth, collisions and removal.
func TestPartIsAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var p part
	want := make(map[Frontend]owner)
	frontend := func() Frontend {
		return Frontend{Protocol(1 + rng.IntN(3)), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(rng.IntN(64))}), uint16(80+rng.IntN(2)))}
	}
	longest := 0
	for step := range 20_000 {
		f := frontend()
		if by, ok := want[f]; ok {
			if got, found := p.find(&f, f.hash()); !found || got != by {
				t.Fatalf("step %d: %s belongs to %v, want %v", step, f, got, by)
			}
			delete(want, f)
			p.remove(&f)
		} else {
			by := owner{slot: int32(step), owned: true}
			want[f] = by
			p.put(&f, by)
		}
		if got, found := p.find(&f, f.hash()); found != want[f].owned || got != want[f] {
			t.Fatalf("step %d: %s belongs to %v, want %v", step, f, got, want[f])
		}
		if p.used != len(want) {
			t.Fatalf("step %d: %d used, want %d", step, p.used, len(want))
		}
		longest = max(longest, p.used)
	}
	for f, by := range want {
		if got, _ := p.find(&f, f.hash()); got != by {
			t.Errorf("%s belongs to %v, want %v", f, got, by)
		}
	}
	if longest < 100 {
		t.Errorf("at most %d entries: too few to collide", longest)
	}
}
