package lb

import (
	"net/netip"
	"slices"
	"testing"
)

// drainable returns service ports of two Services with the same three endpoints at two ports.
func drainable() []*Service {
	var all []*Service
	for i, name := range []string{"one", "one", "two"} {
		s := echo(1, 2, 3)
		s.ID = ID{Namespace: "default", Name: name, Port: []string{"a", "b", ""}[i], Protocol: TCP}
		s.Addresses = []Address{{Addr: address(100 + i)}}
		for k := range s.Backends {
			s.Backends[k] = Backend{Addr: netip.AddrPortFrom(address(k+1).Addr(), 8080), Ready: true, Serving: true}
			if i == 1 {
				s.Backends[k].Addr = netip.AddrPortFrom(address(k+1).Addr(), 9090)
			}
		}
		all = append(all, &s)
	}
	return all
}

// TestMark: a drain is of an address, of a port there, of a node, and of one Service or of all; what is not concerned
// is the same pointer, and what is marked loses the mark with the drain.
func TestMark(t *testing.T) {
	host := address(1).Addr()
	nodes := func(node string) []Host {
		one, two := Name{"default", "one"}, Name{"default", "two"}
		if node == "n1" { // others have endpoints at the same addresses without a nodeName
			return []Host{{one, address(1).Addr()}, {two, address(2).Addr()}, {two, address(2).Addr()}}
		}
		return nil
	}
	for name, x := range map[string]struct {
		drains []Drain
		want   [3]int // drained endpoints of each service port
	}{
		"none":        {nil, [3]int{}},
		"an address":  {[]Drain{{Addr: netip.AddrPortFrom(host, 0)}}, [3]int{1, 1, 1}},
		"a port":      {[]Drain{{Addr: netip.AddrPortFrom(host, 9090)}}, [3]int{0, 1, 0}},
		"a Service":   {[]Drain{{Addr: netip.AddrPortFrom(host, 0), Service: Name{"default", "two"}}}, [3]int{0, 0, 1}},
		"a node":      {[]Drain{{Node: "n1"}}, [3]int{1, 1, 1}},
		"no node":     {[]Drain{{Node: "n2"}}, [3]int{}},
		"both":        {[]Drain{{Node: "n1"}, {Addr: netip.AddrPortFrom(address(3).Addr(), 8080)}}, [3]int{2, 1, 2}},
		"none's port": {[]Drain{{Addr: netip.AddrPortFrom(host, 1)}}, [3]int{}},
	} {
		d := NewDrains(x.drains, nodes)
		sum, want := 0, 0
		for i, n := range d.Counts(drainable()) {
			if sum += n; x.drains[i].Node == "n1" && n != 3 {
				t.Errorf("%s: %d endpoints are on the node", name, n)
			}
		}
		for _, n := range x.want {
			want += n
		}
		if sum != want {
			t.Errorf("%s: %d endpoints are counted, want %d", name, sum, want)
		}
		for i, s := range drainable() {
			marked := d.Mark(s, 0)
			if n := marked.Drained(); n != x.want[i] || (marked == s) != (n == 0) || s.Drained() != 0 {
				t.Errorf("%s: %d endpoints of %s are drained, want %d", name, n, s.ID, x.want[i])
			}
			if again := d.Mark(marked, 0); again != marked {
				t.Errorf("%s: it is marked again", name)
			}
			if back := (*Drains)(nil).Mark(marked, 0); !back.Equal(s) {
				t.Errorf("%s: without the drain it is %+v", name, back)
			}
		}
		if same := NewDrains(slices.Clone(x.drains), nodes); !same.Equal(d) || len(x.drains) > 0 && d.Equal(nil) {
			t.Errorf("%s: it does not equal itself, or is like none", name)
		}
	}
}

// TestStranded: whom a drain leaves without an endpoint, be it only one of this node where that is asked for.
func TestStranded(t *testing.T) {
	all := drainable()
	all[2].Backends[0].Local = true
	all[2].Addresses[0].Local = true
	all[1].Backends = all[1].Backends[:2]
	at := func(n int) Drain { return Drain{Addr: netip.AddrPortFrom(address(n).Addr(), 0)} }
	one, two := Name{"default", "one"}, Name{"default", "two"}
	for name, x := range map[string]struct {
		before, after []Drain
		want          []Name
	}{
		"the local one":     {nil, []Drain{at(1)}, []Name{two}},
		"another":           {nil, []Drain{at(2)}, nil},
		"the last of a":     {[]Drain{at(2)}, []Drain{at(2), at(1)}, []Name{one, two}},
		"all but one":       {nil, []Drain{at(2), at(3)}, nil},
		"what was stranded": {[]Drain{at(1), at(2)}, []Drain{at(1), at(2), at(3)}, []Name{one, two}},
		"nothing more":      {[]Drain{at(1), at(2)}, []Drain{at(1), at(2), {Addr: address(77)}}, nil},
	} {
		got := NewDrains(x.after, nil).Stranded(all, NewDrains(x.before, nil), 0)
		if !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
}
