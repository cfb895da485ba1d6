package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestModel makes random changes, and compares what the kernel then has with what a
// dumb model says, after each. Nobody asks, so that nothing drains.
func TestModel(t *testing.T) {
	t.Parallel()
	seed, steps := rand.Uint64(), 2*lab.Changes()
	if testing.Short() {
		steps = 150 // in a machine that is interpreted
	}
	n := newNode(t, testbed.Config{Pods: -1})
	w := newWorld(seed, n.About.Addresses)
	var before [2][]lb.Service
	for step := range steps {
		v6, what := w.change()
		services := slices.Collect(maps.Values(w.services))
		slices.SortFunc(services, func(a, b lb.Service) int { return strings.Compare(a.Name, b.Name) })
		i := 0 // the other family's engine is not concerned
		if v6 {
			i = 1
		}
		e, d := n.engines[i], between(before[i], services)
		before[i] = services
		if w.rand.IntN(4) == 0 {
			d = whole(services...)
		}
		n.Node.DoT(n.T, func() error {
			if err := e.Sync(t.Context(), d, n.About); err != nil {
				return err
			}
			if diff := cmp.Diff(expect(services, v6), found(t, e)); diff != "" {
				t.Fatalf("step %d, %s of seed %d: -want +got:\n%s", step, what, seed, diff)
			}
			return nil
		})
	}
	if !n.Verify() {
		t.Error("Verify finds something out of place")
	}
}

// world is the Services that there are.
type world struct {
	rand     *rand.Rand
	node     []netip.Addr // that have node ports
	services map[lb.ID]lb.Service
}

func newWorld(seed uint64, node []netip.Addr) *world {
	return &world{rand.New(rand.NewPCG(seed, 0)), node, make(map[lb.ID]lb.Service)}
}

// change changes one Service and says in which family, and what it did.
func (w *world) change() (v6 bool, what string) {
	i := w.rand.IntN(12)
	v6 = i%3 == 2
	k := id(fmt.Sprintf("s%02d", i), []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP}[i%4%3], v6)
	s, there := w.services[k]
	switch n := w.rand.IntN(8); {
	case !there, n == 0:
		w.services[k] = w.fresh(k, i)
		return v6, "fresh " + k.String()
	case n == 1:
		delete(w.services, k)
		return v6, "without " + k.String()
	case n == 2:
		s.Addresses = w.addresses(i, v6)
	case n == 3:
		s.Policies = &lb.Policies{Scheduler: pick(w.rand, "", "rr", "wlc", "sh", "mh,mh-port", "nonsense")}
	case n == 4:
		s.AffinityTimeout = pick(w.rand, int64(0), 1, 10_800e9)
	default:
		s.Backends = w.backends(v6)
	}
	w.services[k] = s
	return v6, "changed " + k.String()
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func (w *world) fresh(k lb.ID, i int) lb.Service {
	return lb.Service{ID: k, Addresses: w.addresses(i, k.IPv6), Backends: w.backends(k.IPv6)}
}

func (w *world) addresses(i int, v6 bool) []lb.Address {
	out := []lb.Address{{Addr: netip.AddrPortFrom(vip(v6, i+1), 80), Local: w.rand.IntN(4) == 0}}
	local := w.rand.IntN(2) == 0
	if w.rand.IntN(2) == 0 {
		for _, ip := range w.node {
			if at := netip.AddrPortFrom(ip, uint16(30000+i)); ip.Is6() == v6 {
				out = append(out, lb.Address{Addr: at, Kind: lb.NodePort, Local: local})
			}
		}
	}
	if w.rand.IntN(2) == 0 {
		a := lb.Address{Addr: netip.AddrPortFrom(vip(v6, 100+i), 80), Kind: lb.LoadBalancerIP, Local: local}
		if w.rand.IntN(2) == 0 {
			a.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28"), netip.MustParsePrefix("2001:db8:1::/64")}
		}
		out = append(out, a)
	}
	return out
}

func (w *world) backends(v6 bool) []lb.Backend {
	var out []lb.Backend
	for i := range 6 {
		if w.rand.IntN(3) > 0 {
			continue
		}
		b := lb.Backend{Addr: netip.AddrPortFrom(vip(v6, 200+i), 8080), Local: w.rand.IntN(2) == 0}
		b.Ready, b.Terminating = w.rand.IntN(3) > 0, w.rand.IntN(4) == 0
		b.Serving = b.Ready || b.Terminating
		out = append(out, b)
	}
	return out
}

// contents is what there is, as text: virtual servers with their backends, addresses,
// and members of sets that are looked at.
type contents struct {
	Servers   map[string]string
	Addresses []string
	Sets      map[string][]string
}

// expect is the model.
func expect(services []lb.Service, v6 bool) contents {
	c := contents{Servers: map[string]string{}, Sets: map[string][]string{}}
	vips := map[string]bool{}
	set := func(name string, f lb.Frontend) { c.Sets[name] = append(c.Sets[name], f.String()) }
	for _, s := range services {
		if s.IPv6 != v6 {
			continue
		}
		scheduler := map[string]string{
			"": "rr", "rr": "rr", "wlc": "wlc", "sh": "sh+8", "mh,mh-port": "mh+24", "nonsense": "rr",
		}[s.Requests().Scheduler]
		if s.AffinityTimeout > 0 {
			scheduler += fmt.Sprintf(" for %d", (s.AffinityTimeout+999_999_999)/1e9)
		}
		inside := scheduler
		if s.AffinityTimeout > 0 {
			inside = "mh+8"
		}
		for _, a := range s.Addresses {
			if a.Kind != lb.NodePort {
				vips[a.Addr.Addr().String()] = true
			}
			cluster, local := texts(s.Eligible()), texts(s.EligibleLocal())
			f := lb.Frontend{Protocol: s.Protocol, Addr: a.Addr}
			external := a.Kind != lb.ClusterIP
			switch {
			case cluster == "":
				set(setRefuse, f)
			case !a.Local:
				c.Servers[f.String()] = scheduler + cluster
			case local != "":
				c.Servers[f.String()] = scheduler + local
			case external:
				set(setOutside, f)
			default:
				set(setDrop, f)
			}
			if external && a.Local && cluster != local {
				c.Servers["inside "+f.String()] = inside + cluster
			}
			if external && !a.Local {
				set(setExternal, f)
			}
			if len(a.Sources) > 0 {
				set(setRestricted, f)
			}
		}
	}
	c.Addresses = slices.Sorted(maps.Keys(vips))
	for name := range c.Sets {
		slices.Sort(c.Sets[name])
	}
	return c
}

func texts(list []lb.Backend) string {
	var out []string
	for _, b := range list {
		out = append(out, " "+b.Addr.String())
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// found is what the kernel has of an engine's.
func found(t *testing.T, e *Engine) contents {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil && !errors.Is(err, syscall.ENOENT) { // before there is anything to forward there are no sets
			t.Fatal(err)
		}
	}
	c := contents{Servers: map[string]string{}, Sets: map[string][]string{}}
	tab, err := open(e.IPv6, new(uint64))
	must(err)
	defer tab.Close()
	have, err := tab.read(func(key) bool { return true })
	must(err)
	frontend := func(m netfilter.Member) string { return m.Frontend().String() }
	near, err := e.shape().set(setNear).Read()
	must(err)
	for k, h := range have {
		text := h.scheduler
		if flags := h.flags &^ flagPersistent; flags != 0 {
			text += fmt.Sprintf("+%d", flags)
		}
		if h.flags&flagPersistent != 0 {
			text += fmt.Sprintf(" for %d", h.timeout)
		}
		var backends []string
		for a, w := range h.weights {
			if w != 1 {
				t.Errorf("%s: %s has weight %d", k, a, w)
			}
			backends = append(backends, " "+a.String())
		}
		slices.Sort(backends)
		text += strings.Join(backends, "")
		if k.mark == 0 {
			c.Servers[k.String()] = text
			continue
		}
		led := false
		for _, m := range near {
			if m.Mark == k.mark {
				c.Servers["inside "+frontend(m)] = text
				led = true
			}
		}
		if !led {
			t.Errorf("no frontend leads to %s", k)
		}
	}
	here, err := routed(e.IPv6)
	must(err)
	for _, a := range here {
		c.Addresses = append(c.Addresses, a.String())
	}
	slices.Sort(c.Addresses)
	for _, name := range []string{setRefuse, setOutside, setDrop, setExternal, setRestricted} {
		list, err := e.shape().set(name).Read()
		must(err)
		for _, m := range list {
			c.Sets[name] = append(c.Sets[name], frontend(m))
		}
		slices.Sort(c.Sets[name])
	}
	maps.DeleteFunc(c.Sets, func(_ string, list []string) bool { return len(list) == 0 })
	return c
}
