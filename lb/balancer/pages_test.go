package balancer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// numbered returns service i, with one address and some backends of its own.
func numbered(i, backends int) lb.Service {
	s := lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprint("s", i), Protocol: lb.TCP}}
	s.Addresses = []lb.Address{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)}}
	for k := range backends {
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(k), byte(i >> 8), byte(i)}), 80), Ready: true})
	}
	return s
}

// TestTablesStay: a table, and a balancer's snapshot of it, stays as it was, whatever
// tables are made from it, and however many pages of services they share.
func TestTablesStay(t *testing.T) {
	testbed.Native(t)
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, seed))
	var services []*lb.Service
	for i := range 3 * lb.PageSize {
		s := numbered(i, 2)
		services = append(services, &s)
	}
	var b Balancer
	table, _ := lb.NewTable(services, here)
	type moment struct {
		table *lb.Table
		snap  *snapshot
		want  []*lb.Service
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
		want, wantErr := lb.NewTable(services, here)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || fmt.Sprint(next.Services()) != fmt.Sprint(want.Services()) {
			t.Fatalf("step %d: Next has\n%v, %v\nNewTable\n%v, %v", step, next.Services(), err, want.Services(), wantErr)
		}
		table, services = next, next.Services()
	}
	for step, was := range before {
		for i, s := range was.want {
			at := was.table.At(i)
			if at != s || at.ID != s.ID || !slices.Equal(at.Backends, s.Backends) || at.AffinityTimeout != s.AffinityTimeout {
				t.Fatalf("step %d: service %d is %v, and was %v", step, i, *at, s)
			}
			made := was.snap.service(was.table.Slots()[i])
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

// TestBytesOfChange holds down what one change among 10,000 services allocates: each byte
// brings the next garbage collection nearer, and who comes then waits.
func TestBytesOfChange(t *testing.T) {
	testbed.Native(t)
	services := make([]*lb.Service, 10_000)
	for i := range services {
		s := numbered(i, 10)
		services[i] = &s
	}
	fewer := slices.Clone(services)
	changed := *fewer[7]
	changed.Backends = changed.Backends[1:]
	fewer[7] = &changed
	var b Balancer
	table, _ := lb.NewTable(services, here)
	b.Update(table)
	for _, c := range []struct {
		what  string
		other []*lb.Service
	}{{"endpoint", fewer}, {"service", services[1:]}} {
		const changes = 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range changes / 2 {
			for _, list := range [][]*lb.Service{c.other, services} {
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
