package ipvs

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/lb"
)

// write does what a Sync without connections does: what is pending or touched comes to be
// as it is wanted, and nothing else.
func (w *state) write(servers map[key]server) {
	for x := range w.pending {
		if s, wanted := w.servers[x]; wanted {
			servers[x] = s
		} else {
			delete(servers, x)
		}
	}
	write(&w.addresses)
	for _, set := range w.sets {
		write(set)
	}
	w.settle(nil, func(key) bool { return false })
}

func write[T comparable](t *things[T]) {
	for _, x := range t.lacking() {
		t.is(x, true)
	}
	for _, x := range t.surplus() {
		t.is(x, false)
	}
	t.settle()
}

// TestUpdate makes random changes, of which some have addresses clash or are of the node,
// and compares the state with one that is made at once, and what would have been written
// with both.
func TestUpdate(t *testing.T) {
	const seed, steps = 8, 1000
	w := &world{rand: rand.New(rand.NewPCG(seed, 0)), services: make(map[lb.ID]lb.Service)}
	got, h := newState(), testHost(false)
	servers := make(map[key]server)
	clashes := 0
	for step := range steps {
		_, what := w.change()
		if w.rand.IntN(4) == 0 { // at the node port of another
			i := pick(w.rand, 0, 4)
			k := id([]string{"s00", "s04"}[i/4], lb.TCP, false)
			if s, there := w.services[k]; there {
				at := netip.AddrPortFrom(h.node[0], uint16(30003+i))
				s.Addresses = append(slices.Clone(s.Addresses[:1]), lb.Address{Addr: at, Kind: lb.ExternalIP})
				w.services[k], what = s, "with another's node port "+k.String()
			}
		}
		if w.rand.IntN(20) == 0 {
			h = testHost(false)
			h.pods, what = pick(w.rand, nil, h.pods), "another host"
		}
		services := slices.Collect(maps.Values(w.services))
		slices.SortFunc(services, func(a, b lb.Service) int { return strings.Compare(a.Name, b.Name) })
		if w.rand.IntN(10) == 0 {
			w.rand.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
		}
		got.update(h, services)
		want := newState()
		for id, u := range got.units { // which depend on what was
			want.units[id] = &unit{number: u.number}
		}
		want.update(h, services)
		if diff := cmp.Diff(want.text(), got.text()); diff != "" {
			t.Fatalf("step %d, %s of seed %d: -want +got:\n%s", step, what, seed, diff)
		}
		if got.clashes {
			clashes++
		}
		got.write(servers)
		if !reflect.DeepEqual(servers, got.servers) {
			t.Fatalf("step %d, %s of seed %d: a virtual server has changed and is not pending", step, what, seed)
		}
		for name, set := range got.sets {
			for m, v := range set.all {
				if !v.there || v.touched || v.wanted != want.sets[name].all[m].wanted {
					t.Fatalf("step %d, %s of seed %d: %v of %s is %+v, want %+v", step, what, seed, m, name, v, want.sets[name].all[m])
				}
			}
		}
		for ip, v := range got.addresses.all {
			if !v.there || v.wanted != want.addresses.all[ip].wanted {
				t.Fatalf("step %d, %s of seed %d: address %s is %+v, want %+v", step, what, seed, ip, v, want.addresses.all[ip])
			}
		}
		if got.update(h, services); !got.settled() {
			t.Fatalf("step %d, %s of seed %d: the same again is not the same", step, what, seed)
		}
	}
	if clashes < steps/20 {
		t.Errorf("addresses clashed in %d of %d steps", clashes, steps)
	}
}

// TestUpdateOfOne holds down what a change of one Service among 10,000 touches and
// allocates.
func TestUpdateOfOne(t *testing.T) {
	services, h := many(10_000), testHost(false)
	fewer := slices.Clone(services)
	fewer[7].Backends = fewer[7].Backends[1:]
	without := slices.Delete(slices.Clone(services), 7, 8)
	w := newState()
	servers := make(map[key]server)
	update := func(list []lb.Service) (touched int) {
		w.update(h, list)
		touched = len(w.pending) + len(w.addresses.touched)
		for _, set := range w.sets {
			touched += len(set.touched)
		}
		w.write(servers)
		return touched
	}
	for _, test := range []struct {
		what  string
		other []lb.Service
		most  int // things
	}{
		{"nothing", services, 0},
		{"an endpoint", fewer, 6}, // what the Service has is taken back, and wanted again
		{"a Service", without, 6}, // virtual server, address, and members of four sets
	} {
		update(services)
		update(test.other) // to begin with, memory is taken that serves again
		update(services)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const changes = 20
		for range changes / 2 {
			for _, list := range [][]lb.Service{test.other, services} {
				if touched := update(list); touched > test.most {
					t.Fatalf("%s: %d things are touched, at most %d are right", test.what, touched, test.most)
				}
			}
		}
		runtime.ReadMemStats(&after)
		const limit = 16 << 10
		if each := (after.TotalAlloc - before.TotalAlloc) / changes; each > limit {
			t.Errorf("%s: a change allocates %d bytes, at most %d are right", test.what, each, limit)
		}
	}
}
