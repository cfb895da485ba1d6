package lb

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestUnwritten has a writer of IPv4 write random deltas, some of them whole, and lose some: after a loss the next one is
// whole. It then has what the deltas say, and each change begins at what it has and changes something.
func TestUnwritten(t *testing.T) {
	testbed.Sequential(t)
	r := rand.New(rand.NewPCG(3, 0))
	now, has := map[ID]*Service{}, map[ID]*Service{}
	of := func(s *Service) *Service { return s }
	lost := false
	for step := range 2000 {
		var d Delta
		if d.Whole = lost || r.IntN(8) == 0; d.Whole {
			now = map[ID]*Service{}
		}
		for _, n := range r.Perm(10)[:r.IntN(4)] { // a service is named once
			id := ID{Name: string(rune('a' + n)), Protocol: TCP, IPv6: n > 7}
			s := &Service{ID: id, AffinityTimeout: int64(r.IntN(2))}
			switch old := now[id]; {
			case old == nil:
				d.Added = append(d.Added, s)
			case r.IntN(2) == 0:
				d.Removed = append(d.Removed, old)
				delete(now, id)
				continue
			default:
				d.Changed = append(d.Changed, Change{Old: old, New: s})
			}
			now[id] = s
		}
		if lost = r.IntN(5) == 0; lost {
			continue
		}
		for _, c := range Unwritten(&d, false, has, of) {
			if c.Old != has[c.ID()] || c.Old.Equal(c.New) || c.Addresses != (c.Old == nil || c.New == nil) {
				t.Fatalf("step %d: %s changes from %v to %v, and there is %v", step, c.ID(), c.Old, c.New, has[c.ID()])
			}
			if delete(has, c.ID()); c.New != nil {
				has[c.New.ID] = c.New
			}
		}
		want := maps.Clone(now)
		maps.DeleteFunc(want, func(id ID, _ *Service) bool { return id.IPv6 })
		if !maps.EqualFunc(has, want, (*Service).Equal) {
			t.Fatalf("step %d: written are %v, want %v", step, has, want)
		}
	}
}
