package lb

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestMirror folds random deltas, whole ones among them, and compares what there is and
// what has changed with the lists that they are made from.
func TestMirror(t *testing.T) {
	testbed.Sequential(t)
	r := rand.New(rand.NewPCG(3, 0))
	var m Mirror
	was, now := map[ID]*Service{}, map[ID]*Service{}
	for step := range 2000 {
		var d Delta
		if d.Whole = r.IntN(8) == 0; d.Whole {
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
		m.Fold(&d, false)
		maps.DeleteFunc(now, func(id ID, _ *Service) bool { return id.IPv6 })
		if !maps.Equal(m.Services(), now) {
			t.Fatalf("step %d: there are %v, want %v", step, m.Services(), now)
		}
		if r.IntN(3) == 0 {
			continue // the next one says this change too
		}
		changed := make(map[ID]bool)
		for _, c := range m.Changed() {
			if c.Old != was[c.ID()] && !(c.Old != nil && was[c.ID()] != nil && c.Old.Equal(was[c.ID()])) || c.New != now[c.ID()] {
				t.Fatalf("step %d: %s changed from %v to %v, want from %v to %v", step, c.ID(), c.Old, c.New, was[c.ID()], now[c.ID()])
			}
			changed[c.ID()] = true
		}
		for id := range now {
			if (was[id] == nil || !was[id].Equal(now[id])) && !changed[id] {
				t.Fatalf("step %d: %s is not among the changed", step, id)
			}
		}
		for id := range was {
			if now[id] == nil && !changed[id] {
				t.Fatalf("step %d: %s, which has gone, is not among the changed", step, id)
			}
		}
		was = maps.Clone(now)
	}
	d := Delta{Whole: true}
	for _, s := range now {
		again := *s
		d.Added = append(d.Added, &again)
	}
	m.Changed()
	if m.Fold(&d, false); len(m.Changed()) > 0 {
		t.Error("services that say the same have changed")
	}
}
