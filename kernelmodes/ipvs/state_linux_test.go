package ipvs

import (
	"maps"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// write does what a Sync without connections does: what is pending comes to be as it is
// requested, and nothing else.
func (w *state) write() {
	for x := range w.pending {
		s, requested := w.servers[x]
		if h := w.have[x]; h != nil && !requested {
			w.gone(x, h)
		} else if h != nil {
			h.server = s
		} else if requested {
			w.made(x, &held{server: s})
		}
	}
	write(&w.addresses)
	for _, name := range allSets {
		write(w.set(name))
	}
	w.commit()
}

func write[T comparable](r *netfilter.Refs[T]) {
	for _, x := range r.Missing() {
		r.SetPresent(x, true)
	}
	for _, x := range r.Surplus() {
		r.SetPresent(x, false)
	}
	r.Settle()
}

// committed reports whether there is nothing to write.
func (w *state) committed() bool {
	for _, name := range allSets {
		if !w.set(name).Settled() {
			return false
		}
	}
	return w.addresses.Settled() && len(w.pending) == 0
}

// TestUpdate makes random changes, some of which make addresses clash or are of the node,
// and compares the state with one that is made at once, and what would have been written
// with both.
func TestUpdate(t *testing.T) {
	const seed, steps = 8, 1000
	got, h := fresh(false), testHost(false)
	w := newWorld(seed, []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}) // all of the node's
	var before []lb.Service
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
		d := between(before, services)
		if w.rand.IntN(4) == 0 {
			d = whole(services...)
		}
		got.update(h, &d)
		before = services
		want := fresh(false)
		for id, u := range got.units { // which depend on what was
			want.units[id] = &unit{number: u.number}
		}
		want.sync(h, services)
		got.write()
		if diff := cmp.Diff(want.text(), got.text()); diff != "" {
			t.Fatalf("step %d, %s of seed %d: -want +got:\n%s", step, what, seed, diff)
		}
		if got.clashes {
			clashes++
		}
		if !maps.EqualFunc(got.have, got.servers, func(h *held, s server) bool { return reflect.DeepEqual(h.server, s) }) {
			t.Fatalf("step %d, %s of seed %d: a virtual server has changed and is not pending", step, what, seed)
		}
		if got.sync(h, services); !got.committed() {
			t.Fatalf("step %d, %s of seed %d: the same again is not the same", step, what, seed)
		}
	}
	if clashes < steps/20 {
		t.Errorf("addresses clashed in %d of %d steps", clashes, steps)
	}
}

// between returns how two lists of Services differ.
func between(was, now []lb.Service) (d lb.Delta) {
	old := make(map[lb.ID]*lb.Service, len(was))
	for i := range was {
		old[was[i].ID] = &was[i]
	}
	for i := range now {
		s := &now[i]
		if o := old[s.ID]; o == nil {
			d.Added = append(d.Added, s)
		} else if !o.Equal(s) {
			d.Changed = append(d.Changed, lb.Change{Old: o, New: s, Addresses: true})
		}
		delete(old, s.ID)
	}
	for _, s := range old {
		d.Removed = append(d.Removed, s)
	}
	return d
}

// TestUpdateOfOne bounds what a change of one Service among 10,000 looks at and allocates.
func TestUpdateOfOne(t *testing.T) {
	services, h := many(10_000), testHost(false)
	fewer := slices.Clone(services)
	fewer[7].Backends = fewer[7].Backends[1:]
	without := slices.Delete(slices.Clone(services), 7, 8)
	w := render(h, services)
	w.write()
	update := func(d lb.Delta) (pending int) {
		w.update(h, &d)
		pending = len(w.pending) + len(w.addresses.Missing()) + len(w.addresses.Surplus())
		for _, name := range allSets {
			pending += len(w.set(name).Missing()) + len(w.set(name).Surplus())
		}
		w.write()
		return pending
	}
	for _, test := range []struct {
		what  string
		other []lb.Service
		most  int // objects
	}{
		{"nothing", services, 0},
		{"an endpoint", fewer, 1}, // of the virtual server
		{"a Service", without, 6}, // virtual server, address, and members of four sets
	} {
		there, back := between(services, test.other), between(test.other, services)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const changes = 20
		for range changes / 2 {
			for _, d := range []lb.Delta{there, back} {
				if pending := update(d); pending > test.most {
					t.Fatalf("%s: %d objects are pending, at most %d are right", test.what, pending, test.most)
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
