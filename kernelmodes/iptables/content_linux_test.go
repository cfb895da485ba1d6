package iptables

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// TestContentTakesOver: a content that is edited from change to change is the one that is
// made from nothing, whatever has changed: some Services, their number, the shape.
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
	there := map[int]lb.Service{}
	now := newContent(netfilter.NewRuleset(nil, layout(false)), w.shape())
	for round := range 500 {
		var d lb.Delta
		for _, i := range r.Perm(200)[:r.IntN(5)] {
			old, is := there[i]
			s := make(i)
			switch {
			case !is:
				d.Added = append(d.Added, &s)
			case r.IntN(2) == 0:
				d.Removed = append(d.Removed, &old)
				delete(there, i)
				continue
			default:
				d.Changed = append(d.Changed, lb.Change{Old: &old, New: &s})
			}
			there[i] = s
		}
		s := w.shape()
		s.bpf, s.liberal, s.noLocalhost = round%100 < 50, round%40 < 20, round%60 < 30
		now.edit(s, now.changes(&d, false))
		var all []lb.Service
		for _, s := range there {
			all = append(all, s)
		}
		if got, want := lines(now), lines(rendered(s, all...)); got != want {
			t.Fatalf("seed %d, round %d:\n%s\nwant\n%s", seed, round, got, want)
		}
	}
}

// lines returns what a content is written by, in an order that is always the same.
func lines(c *content) string {
	all := strings.Split(c.String(), "\n")
	slices.Sort(all)
	return strings.Join(all, "\n")
}
