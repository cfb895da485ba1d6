package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// TestAdded: frontends are reported once they are served, each time that they were not
// before, and all of them after rules were lost. One without a socket is not served.
func TestAdded(t *testing.T) {
	a, k := newAgent(t)
	a.Log = zap.NewNop()
	var begun []string
	k.stale.add = func(f lb.Frontend) { begun = append(begun, fmt.Sprint(f)) }
	web, other, sig, dns := service(lb.TCP, "web", 1, 1), service(lb.TCP, "other", 2, 1), service(lb.SCTP, "sig", 3, 1), service(lb.UDP, "dns", 4, 1)
	gate, late := service(lb.SCTP, "gate", 6, 1), service(lb.TCP, "late", 7, 1)
	again, another := *web, *web
	grown, moved := &again, &another
	grown.Backends = service(lb.TCP, "web", 1, 1, 2).Backends
	moved.ID.Name = "moved"
	at := func(list ...*lb.Service) (out []string) {
		for _, s := range list {
			out = append(out, fmt.Sprint(lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr}))
		}
		slices.Sort(out)
		return out
	}
	lost := func() {
		k.intact = false
		if a.intact(t.Context()) {
			t.Error("lost rules are not noticed")
		}
	}
	for _, step := range []struct {
		name     string
		before   func()
		services []*lb.Service
		want     []string
	}{
		{"the first", nil, []*lb.Service{web, sig, dns}, at(web, sig)},
		{"another", nil, []*lb.Service{web, sig, dns, other}, at(other)},
		{"nothing", nil, []*lb.Service{web, sig, dns, other}, nil},
		{"an endpoint", nil, []*lb.Service{grown, sig, dns, other}, nil},
		{"another Service has the address", nil, []*lb.Service{moved, sig, dns, other}, nil},
		{"one goes", nil, []*lb.Service{moved, dns, other}, nil},
		{"and comes again", nil, []*lb.Service{moved, sig, dns, other}, at(sig)},
		{"rules were lost", lost, []*lb.Service{moved, sig, dns, other}, at(moved, sig, other)},
		{"no socket for one of two", func() { k.taken[k.port+1] = true }, []*lb.Service{moved, gate, sig, dns, late}, at(late)},
		{"nor another time", func() { k.taken[k.port+1] = true }, []*lb.Service{moved, gate, sig, dns, late}, nil},
		{"and then one", nil, []*lb.Service{moved, gate, sig, dns, late}, at(gate)},
		{"which is reported once", nil, []*lb.Service{moved, gate, sig, dns, late}, nil},
		{"not in force", func() { k.fail = errors.New("no") }, []*lb.Service{moved, sig, dns}, nil},
		{"nor later", nil, []*lb.Service{web, moved, sig, dns}, nil},
	} {
		begun = nil
		if step.before != nil {
			step.before()
		}
		if err := a.Apply(t.Context(), Desired{Services: lists.Of(step.services)}); !errors.Is(err, k.fail) && !errors.Is(err, errTaken) {
			t.Fatalf("%s: %v", step.name, err)
		}
		if slices.Sort(begun); !slices.Equal(begun, step.want) {
			t.Errorf("%s: told of %q, want %q", step.name, begun, step.want)
		}
	}
	k.fail = nil
	fresh := service(lb.TCP, "fresh", 5, 1)
	if err := a.Apply(t.Context(), Desired{Services: lists.Of([]*lb.Service{moved, sig, fresh})}); err != nil || !slices.Equal(begun, at(fresh)) {
		t.Errorf("once in force: told of %q, %v", begun, err)
	}
}
