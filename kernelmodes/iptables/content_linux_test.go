package iptables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestContentTakesOver: a content that is made from another is the one that is made from
// nothing, and says which Services differ, whatever has changed: some of them, their
// order, their number.
func TestContentTakesOver(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	w := world{}
	make := func(i int) lb.Service {
		s := plain(false, i, slices.Repeat([]int{i}, r.IntN(3))...)
		if r.IntN(2) == 0 {
			s.Addresses = append(s.Addresses, lb.Address{Addr: anywhere(false, uint16(30000+i)), Kind: lb.NodePort})
		}
		return s
	}
	var services []lb.Service
	was := (*content)(nil).next(w.shape(), nil)
	for round := range 500 {
		services = slices.Clone(services)
		for range r.IntN(4) {
			switch n := len(services); {
			case n == 0 || r.IntN(3) == 0:
				s := make(1 + r.IntN(400))
				if !slices.ContainsFunc(services, func(x lb.Service) bool { return x.ID == s.ID }) {
					services = slices.Insert(services, r.IntN(n+1), s)
				}
			case r.IntN(3) == 0:
				i := r.IntN(n)
				services = slices.Delete(services, i, i+1)
			case r.IntN(3) == 0:
				i, k := r.IntN(n), r.IntN(n)
				services[i], services[k] = services[k], services[i]
			default:
				for i := range services {
					if i == r.IntN(n) {
						var number int
						if _, err := fmt.Sscanf(services[i].ID.Name, "s%d", &number); err != nil {
							t.Fatal(err)
						}
						services[i] = make(number)
					}
				}
			}
		}
		now, fresh := was.next(w.shape(), services), (*content)(nil).next(w.shape(), services)
		if !maps.Equal(now.buckets, fresh.buckets) || !maps.Equal(now.index, fresh.index) {
			t.Fatalf("seed %d, round %d: buckets %v and index %v, want %v and %v", seed, round, now.buckets, now.index, fresh.buckets, fresh.index)
		}
		for i, u := range now.units {
			if f := fresh.units[i]; !slices.Equal(u.entries, f.entries) || !slices.EqualFunc(u.chains, f.chains, func(a, b chain) bool { return a.name == b.name && slices.Equal(a.rules, b.rules) }) {
				t.Fatalf("seed %d, round %d: %s is %+v, want %+v", seed, round, services[i].ID, u, f)
			}
		}
		var want []lb.ID
		for _, u := range now.units {
			if was.unit(u.service.ID) != u {
				want = append(want, u.service.ID)
			}
		}
		for _, u := range was.units {
			if now.unit(u.service.ID) == nil {
				want = append(want, u.service.ID)
			}
		}
		got := now.changed(was)
		slices.SortFunc(want, compareID)
		slices.SortFunc(got, compareID)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d, round %d: %v have changed, want %v", seed, round, got, want)
		}
		was = now
	}
}
