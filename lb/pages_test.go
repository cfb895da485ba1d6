package lb

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
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

// TestTablesStay: a table, and a balancer's snapshot of it, stays as it was, whatever
// tables are made from it, and however many pages of services they share.
func TestTablesStay(t *testing.T) {
	testbed.Native(t)
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, seed))
	var services []*Service
	for i := range 3 * PageSize {
		s := numbered(i, 2)
		services = append(services, &s)
	}
	var b Balancer
	table, _ := NewTable(services, here)
	type moment struct {
		table *Table
		snap  *snapshot
		want  []*Service
	}
	var before []moment
	for step := range 300 {
		b.Update(table)
		before = append(before, moment{table, b.load(), slices.Clone(services)})
		services = slices.Clone(services)
		for range 1 + rng.IntN(4) {
			at := rng.IntN(len(services))
			switch rng.IntN(4) {
			case 0:
				services = slices.Delete(services, at, at+1)
			case 1:
				s := numbered(1000+step*10+rng.IntN(10)*5000, 1)
				services = slices.Insert(services, at, &s)
			case 2:
				s := *services[at]
				s.Backends = numbered(rng.IntN(500), 1+rng.IntN(3)).Backends
				services[at] = &s
			case 3:
				s := *services[at]
				s.AffinityTimeout = rng.Int64N(3)
				services[at] = &s
			}
		}
		next, _, err := table.Next(services, here)
		want, wantErr := NewTable(services, here)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || fmt.Sprint(next.Services()) != fmt.Sprint(want.Services()) {
			t.Fatalf("step %d: Next has\n%v, %v\nNewTable\n%v, %v", step, next.Services(), err, want.Services(), wantErr)
		}
		table, services = next, next.Services()
	}
	for step, was := range before {
		for i, s := range was.want {
			at := was.table.At(i)
			if at != s || at.ID != s.ID || !sameSlice(at.Backends, s.Backends) || at.AffinityTimeout != s.AffinityTimeout {
				t.Fatalf("step %d: service %d is %v, and was %v", step, i, *at, s)
			}
			made := was.snap.service(was.table.slots[i])
			if made.state.id != s.ID || made.affinityTimeout != s.AffinityTimeout || len(made.backends) != len(s.Backends) {
				t.Fatalf("step %d: service %s was made ready as %s", step, s.ID, made.state.id)
			}
			for k := range s.Backends {
				if made.backends[k].addr != s.Backends[k].Addr {
					t.Fatalf("step %d: backend %d of %s is %s, and was %s", step, k, s.ID, made.backends[k].addr, s.Backends[k].Addr)
				}
			}
		}
		if was.table.Len() != len(was.want) {
			t.Fatalf("step %d: %d services, and there were %d", step, was.table.Len(), len(was.want))
		}
	}
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

// TestBytesOfChange holds down what one change among 10,000 services allocates: each byte
// brings the next garbage collection nearer, and who comes then waits.
func TestBytesOfChange(t *testing.T) {
	testbed.Native(t)
	services := make([]*Service, 10_000)
	for i := range services {
		s := numbered(i, 10)
		services[i] = &s
	}
	fewer := slices.Clone(services)
	changed := *fewer[7]
	changed.Backends = changed.Backends[1:]
	fewer[7] = &changed
	var b Balancer
	table, _ := NewTable(services, here)
	b.Update(table)
	for _, c := range []struct {
		what  string
		other []*Service
	}{{"endpoint", fewer}, {"service", services[1:]}} {
		const changes = 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range changes / 2 {
			for _, list := range [][]*Service{c.other, services} {
				table, _, _ = table.Next(list, here)
				b.Update(table)
			}
		}
		runtime.ReadMemStats(&after)
		const limit = 240 << 10 // three lists of numbers and one of pointers are 200 KiB
		if each := (after.TotalAlloc - before.TotalAlloc) / changes; each > limit {
			t.Errorf("a change of one %s allocates %d bytes, at most %d are right", c.what, each, limit)
		}
	}
}
