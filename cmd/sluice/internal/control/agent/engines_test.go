package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestMovesLeaveNoGap walks through random Services on random paths. At every moment
// each address that was served, and will be, is served on some path.
func TestMovesLeaveNoGap(t *testing.T) {
	testbed.Sequential(t)
	r := seeded(t)
	a, k, ipt, ipvs := withEngines(t)
	steady := make(map[lb.Frontend]bool) // served before and after
	served := func(f lb.Frontend) (steered, one, two bool) {
		_, steered = k.steered[f]
		return steered, ipt.serves(f), ipvs.serves(f)
	}
	k.moved = func() {
		for f := range steady {
			if steered, one, two := served(f); !steered && !one && !two {
				t.Fatalf("%s is not served: %v", f, k.calls)
			}
		}
	}
	var before []*lb.Service
	for range 2000 {
		var services []*lb.Service
		for i := range 5 {
			if r.IntN(5) > 0 {
				s := service([]lb.Protocol{lb.TCP, lb.UDP}[i%2], fmt.Sprint("s", i), byte(i+1), byte(1+r.IntN(3)))
				services = append(services, requesting(s, []string{"", "userspace", "iptables", "ipvs"}[r.IntN(4)]))
			}
		}
		clear(steady)
		for _, s := range services {
			if slices.ContainsFunc(before, func(b *lb.Service) bool { return b.ID == s.ID }) {
				steady[lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr}] = true
			}
		}
		ipt.fail, ipvs.fail, k.fail = nil, nil, nil
		if r.IntN(5) == 0 {
			ipvs.fail = errors.New("no memory")
		}
		if r.IntN(10) == 0 {
			k.fail = errors.New("xtables lock held by another program")
		}
		err := a.Apply(t.Context(), Desired{Services: lists.Of(services)})
		if err != nil && ipvs.fail == nil && k.fail == nil {
			t.Fatal(err)
		}
		k.moved()
		k.calls = nil
		before = services
		if err != nil {
			continue // the engine has what it had; user space has the rest
		}
		for _, s := range services {
			f := lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr}
			steered, one, two := served(f)
			if path := s.Requests().DataPath; steered != (path == "" || path == "userspace") ||
				one != (path == "iptables") || two != (path == "ipvs") {
				t.Fatalf("%s requests %q: steered %v, iptables %v, ipvs %v", s.ID, path, steered, one, two)
			}
		}
		if n := len(ipt.made) + len(ipvs.made) + len(k.steered); n != len(services) {
			t.Fatalf("%d addresses served of %d Services", n, len(services))
		}
	}
}
