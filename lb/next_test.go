package lb

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestNextIsAnew: whatever tables came before, Next makes what Anew makes, refusals and their owners included.
func TestNextIsAnew(t *testing.T) {
	testbed.Native(t)
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, seed))
	here := loopNode
	var frontends []Frontend
	for i := range 60 {
		addr := netip.AddrFrom4([4]byte{10, 96, byte(i % 2), byte(i)})
		switch i % 4 {
		case 0:
			addr = netip.IPv4Unspecified()
		case 1:
			addr = here.Addresses[0]
		}
		frontends = append(frontends, Frontend{TCP, netip.AddrPortFrom(addr, uint16(80+i/4%5*100))})
	}
	some := func() *Service {
		s := &Service{ID: ID{Name: fmt.Sprint("s", rng.IntN(20)), Protocol: TCP}, Created: int64(rng.IntN(4))}
		for range rng.IntN(4) {
			a := Address{Addr: frontends[rng.IntN(len(frontends))].Addr, Local: rng.IntN(2) == 0, Kind: Kind(rng.IntN(4))}
			if a.Addr.Addr().IsUnspecified() {
				a.Kind = NodePort
			}
			if !slices.ContainsFunc(s.Addresses, func(o Address) bool { return o.Addr == a.Addr }) {
				s.Addresses = append(s.Addresses, a)
			}
		}
		if rng.IntN(5) == 0 {
			s.CheckPort = frontends[rng.IntN(len(frontends))].Addr.Port()
		}
		for range rng.IntN(3) {
			s.Backends = append(s.Backends, Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + rng.IntN(40))}), 80), Ready: rng.IntN(3) > 0, Local: rng.IntN(3) == 0})
		}
		return s
	}
	table, services := new(Table), []*Service(nil)
	before := table
	alike := func(step int, got, want *Table) {
		t.Helper()
		for _, f := range frontends {
			s, a, ok := got.Lookup(f)
			wantS, wantA, wantOK := want.Lookup(f)
			if ok != wantOK || ok && (s.ID != wantS.ID || fmt.Sprint(*a) != fmt.Sprint(*wantA)) {
				t.Fatalf("step %d: %s belongs to %v, %v, want %v, %v", step, f, s, ok, wantS, wantOK)
			}
		}
	}
	for step := range 1500 {
		services = slices.Clone(services)
		switch at := rng.IntN(len(services) + 1); rng.IntN(5) {
		case 0, 1:
			services = slices.Insert(services, at, some())
		case 2:
			if at < len(services) {
				services = slices.Delete(services, at, at+1)
			}
		case 3:
			if at < len(services) {
				s := *services[at]
				s.Backends = some().Backends
				services[at] = &s
			}
		case 4:
			if at > 0 && at < len(services) {
				services[0], services[at] = services[at], services[0]
			}
		}
		if len(services) > 5 {
			services = services[1:]
		}
		if rng.IntN(40) == 0 {
			here.Addresses = []netip.Addr{loopNode.Addresses[rng.IntN(2)]}
		}
		want, _, wantErr := table.Anew(services, here)
		ownersAreRight(t, table, want, services, frontends)
		next, delta, err := table.Next(services, here)
		if got, want := next.refused(), want.refused(); got != want {
			t.Fatalf("step %d: Next refuses\n%s\nAnew\n%s", step, got, want)
		}
		if err != nil && (wantErr == nil || !contains(wantErr, err)) {
			t.Fatalf("step %d: Next reports\n%v\nof\n%v", step, err, wantErr)
		}
		if fmt.Sprint(next.Services()) != fmt.Sprint(want.Services()) {
			t.Fatalf("step %d: Next has\n%v\nAnew\n%v", step, next.Services(), want.Services())
		}
		if got := apply(table, delta); !reflect.DeepEqual(got, byID(next)) {
			t.Fatalf("step %d: %+v makes %v of %v, want %v", step, delta, got, table.Services(), next.Services())
		}
		alike(step, next, want)
		alike(step, table, before) // it is still what it was
		for i := range next.Len() {
			s := next.At(i)
			if was, ok := table.Service(s.ID); ok && was != s && was.Equal(s) {
				t.Fatalf("step %d: %s stays and is another one", step, s.ID)
			}
		}
		for _, s := range services {
			got, ok := next.Service(s.ID)
			was, wantOK := want.Service(s.ID)
			if ok != wantOK || ok && fmt.Sprint(*got) != fmt.Sprint(*was) {
				t.Fatalf("step %d: service %s is %v, want %v", step, s.ID, got, was)
			}
		}
		table, before = next, want
	}
}

// refused returns what the services of a table were refused, in their order.
func (t *Table) refused() string {
	var out []error
	for _, slot := range t.slots {
		out = append(out, t.records.at(slot).refused...)
	}
	return fmt.Sprint(errors.Join(out...), len(t.index.losers))
}

// contains reports whether each error that is joined in part is in all.
func contains(all, part error) bool {
	lines := strings.Split(all.Error(), "\n")
	for _, line := range strings.Split(part.Error(), "\n") {
		if !slices.Contains(lines, line) {
			return false
		}
	}
	return true
}

// byID returns the services of a table.
func byID(t *Table) map[ID]Service {
	all := make(map[ID]Service)
	for _, s := range t.Services() {
		all[s.ID] = *s
	}
	return all
}

// apply returns the services of a table after a change.
func apply(t *Table, d Delta) map[ID]Service {
	all := byID(t)
	if d.Whole {
		clear(all)
	}
	for _, s := range d.Removed {
		delete(all, s.ID)
	}
	for _, s := range d.Added {
		all[s.ID] = *s
	}
	for _, c := range d.Changed {
		all[c.Old.ID] = *c.New
	}
	return all
}

func TestDelta(t *testing.T) {
	at := func(name string, port uint16, backends ...int) Service {
		s := echo(backends...)
		s.Name, s.Addresses = name, []Address{{Addr: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), port)}}
		return s
	}
	base := []Service{at("a", 1, 1), at("b", 2, 1), at("c", 3, 1)}
	sticky := at("a", 1, 1)
	sticky.AffinityTimeout = 1
	there := here
	there.PodCIDRs = prefixes("10.9.0.0/16")
	for name, c := range map[string]struct {
		services []Service
		node     Node
		want     string
	}{
		"nothing":             {base, here, ""},
		"equal, not the same": {[]Service{at("a", 1, 1), at("b", 2, 1), at("c", 3, 1)}, here, ""},
		"another order":       {[]Service{base[2], base[0], base[1]}, here, ""},
		"comes":               {append(slices.Clone(base), at("d", 4)), here, "+d"},
		"goes":                {base[1:], here, "-a"},
		"endpoint":            {[]Service{at("a", 1, 2), base[1], base[2]}, here, "a"},
		"parameter":           {[]Service{sticky, base[1], base[2]}, here, "a"},
		"address":             {[]Service{at("a", 9, 1), base[1], base[2]}, here, "a@"},
		"address moves":       {[]Service{at("b", 1, 1), base[2]}, here, "-a b@"},
		"refused":             {append(slices.Clone(base), at("d", 1)), here, "+d"}, // without its address
		"refused, and first":  {[]Service{at("d", 1), base[0], base[1], base[2]}, here, "+d"},
		"node":                {base[:2], there, "whole +a +b"},
	} {
		_, d, _ := mustTable(t, base).Next(refs(c.services), c.node)
		if got := fmt.Sprint(d); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if _, d, _ := new(Table).Next(refs(base[:1]), Node{}); fmt.Sprint(d) != "whole +a" {
		t.Errorf("the first table: %v", d)
	}
}

// String names what differs: "+" is added, "-" removed, and "@" has other addresses.
func (d Delta) String() string {
	var out []string
	if d.Whole {
		out = append(out, "whole")
	}
	for _, s := range d.Added {
		out = append(out, "+"+s.Name)
	}
	for _, s := range d.Removed {
		out = append(out, "-"+s.Name)
	}
	for _, c := range d.Changed {
		text := c.New.Name
		if c.Addresses {
			text += "@"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}
