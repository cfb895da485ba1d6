package lb

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// numbered returns service i, with one address and some backends of its own.
func numbered(i, backends int) Service {
	s := Service{ID: ID{Namespace: "default", Name: fmt.Sprint("s", i), Protocol: TCP}}
	s.Addresses = []Address{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)}}
	for k := range backends {
		s.Backends = append(s.Backends, Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(k), byte(i >> 8), byte(i)}), 80), Ready: true})
	}
	return s
}

// TestBeside: beside what is left, a table has the addresses that leave, and is what is
// made of all services anew.
func TestBeside(t *testing.T) {
	const seed = 5
	rng := rand.New(rand.NewPCG(seed, seed))
	with := func(i int, hosts ...int) *Service {
		s := numbered(i, 1)
		for _, h := range hosts {
			s.Addresses = append(s.Addresses, Address{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, byte(i), byte(h)}), 80), Kind: ExternalIP})
		}
		return &s
	}
	for range 300 {
		var old, services []*Service
		for i := range 6 {
			if rng.IntN(4) > 0 {
				old = append(old, with(i, rng.Perm(3)[:rng.IntN(3)]...))
			}
			if rng.IntN(4) > 0 {
				services = append(services, with(i, rng.Perm(3)[:rng.IntN(3)]...))
			}
		}
		was, _ := NewTable(old, here)
		table, _, err := was.Next(services, here)
		if err != nil {
			t.Fatal(err)
		}
		var leaving []*Service
		for _, s := range was.Services() {
			if left := table.Lost(s); left != nil {
				leaving = append(leaving, left)
			}
		}
		got := table.Beside(leaving)
		for _, s := range leaving {
			if i := slices.IndexFunc(services, func(o *Service) bool { return o.ID == s.ID }); i >= 0 {
				both := *services[i]
				both.Addresses = slices.Concat(both.Addresses, s.Addresses)
				services[i] = &both
			} else {
				services = append(services, s)
			}
		}
		want, err := NewTable(services, here)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got.Services()) != fmt.Sprint(want.Services()) {
			t.Fatalf("beside %v:\n%v\nwant\n%v", leaving, got.Services(), want.Services())
		}
		for _, list := range [][]*Service{old, services} {
			for _, s := range list {
				for _, a := range s.Addresses {
					f := Frontend{TCP, a.Addr}
					if owner, by, ok := got.Lookup(f); !ok || owner.ID != s.ID || by.Addr != a.Addr {
						t.Fatalf("%s belongs to %v (%v), want %s", f, owner, ok, s.ID)
					}
				}
			}
		}
		// What comes after it is as if it had not been.
		after, _, err := got.Next(table.Services(), here)
		if err != nil || fmt.Sprint(after.Services()) != fmt.Sprint(table.Services()) {
			t.Fatalf("after that %v, %v, want %v", after.Services(), err, table.Services())
		}
	}
}
