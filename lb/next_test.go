package lb

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestNextIsNewTable: whatever tables came before, Next makes what NewTable makes,
// refusals and their owners included.
func TestNextIsNewTable(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, seed))
	var frontends []Frontend
	for i := range 60 {
		addr := netip.AddrFrom4([4]byte{10, 96, byte(i % 2), byte(i)})
		if i%3 == 0 {
			addr = netip.IPv4Unspecified()
		}
		frontends = append(frontends, Frontend{TCP, netip.AddrPortFrom(addr, uint16(80+i%20*100))})
	}
	some := func() Service {
		s := Service{ID: ID{Name: fmt.Sprint("s", rng.IntN(20)), Protocol: TCP}}
		for range rng.IntN(3) {
			s.Addresses = append(s.Addresses, Address{Addr: frontends[rng.IntN(len(frontends))].Addr, Local: rng.IntN(2) == 0})
		}
		for range rng.IntN(3) {
			s.Backends = append(s.Backends, Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + rng.IntN(40))}), 80), Ready: rng.IntN(3) > 0, Local: rng.IntN(3) == 0})
		}
		return s
	}
	table, services := new(Table), []Service(nil)
	patched := 0
	for step := range 4000 {
		services = slices.Clone(services)
		switch at := rng.IntN(len(services) + 1); rng.IntN(4) {
		case 0, 1:
			services = slices.Insert(services, at, some())
		case 2:
			if at < len(services) {
				services = slices.Delete(services, at, at+1)
			}
		case 3:
			if at < len(services) {
				services[at].Backends = some().Backends
			}
		}
		if len(services) > 5 {
			services = services[1:]
		}
		if _, ok := table.patched(services, here); ok {
			patched++
		}
		want, wantErr := NewTable(services, here)
		next, err := table.Next(services, here)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("step %d: Next refuses\n%v\nNewTable\n%v", step, err, wantErr)
		}
		if fmt.Sprint(next.Services()) != fmt.Sprint(want.Services()) {
			t.Fatalf("step %d: Next has\n%v\nNewTable\n%v", step, next.Services(), want.Services())
		}
		for _, f := range frontends {
			s, a, ok := next.Lookup(f)
			wantS, wantA, wantOK := want.Lookup(f)
			if ok != wantOK || ok && (s.ID != wantS.ID || fmt.Sprint(*a) != fmt.Sprint(*wantA)) {
				t.Fatalf("step %d: %s belongs to %v, %v, want %v, %v", step, f, s, ok, wantS, wantOK)
			}
		}
		for i := range next.Len() {
			s := next.At(i)
			for j := range s.Addresses {
				inside, outside := next.Verdicts(i, &s.Addresses[j])
				if wantIn, wantOut := s.Verdicts(s.Addresses[j]); inside != wantIn || outside != wantOut {
					t.Fatalf("step %d: at %v the table says %s and %s, %v itself %s and %s", step, s.Addresses[j], inside, outside, s, wantIn, wantOut)
				}
			}
		}
		first, last := next.Common(table)
		for i := range next.Len() {
			from := i
			if i >= next.Len()-last {
				from += table.Len() - next.Len()
			}
			if same := from < table.Len() && next.At(i) == table.At(from); (i < first || i >= next.Len()-last) && !same || i == first && i < next.Len()-last && same {
				t.Fatalf("step %d: %d and %d services are said to be common to\n%v\n%v", step, first, last, next.Services(), table.Services())
			}
		}
		for _, s := range services {
			got, ok := next.Service(s.ID)
			was, wantOK := want.Service(s.ID)
			if ok != wantOK || ok && fmt.Sprint(*got) != fmt.Sprint(*was) {
				t.Fatalf("step %d: service %s is %v, want %v", step, s.ID, got, was)
			}
		}
		table = next
	}
	if patched < 1000 || patched > 3900 {
		t.Errorf("%d of 4,000 tables were patched: the test has to see many of both kinds", patched)
	}
}

// TestNextLeavesOlderTablesAlone: a table that others were made from is still what it was.
func TestNextLeavesOlderTablesAlone(t *testing.T) {
	one, two := echo(1), echo(2)
	two.Name, two.Addresses = "two", []Address{{Addr: netip.MustParseAddrPort("0.0.0.0:30080"), Kind: NodePort}}
	first := mustTable(t, []Service{one, two})
	if _, err := first.Next([]Service{one}, here); err != nil {
		t.Fatal(err)
	}
	moved := two
	moved.Name = "moved"
	if _, err := first.Next([]Service{moved}, here); err != nil {
		t.Fatal(err)
	}
	for _, s := range []Service{one, two} {
		if got, _, ok := first.Lookup(Frontend{TCP, s.Addresses[0].Addr}); !ok || got.ID != s.ID {
			t.Errorf("%s belongs to %v, want %s", s.Addresses[0].Addr, got, s.ID)
		}
	}
}
