package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// holder stands in for addresses.Set, and checks that an address is there before
// its sockets are and goes after them.
type holder struct {
	k    *kernel
	held []netip.Addr
	fail error
}

func (h *holder) Sync(_ context.Context, want []netip.Addr) error {
	want = slices.Clone(want)
	slices.SortFunc(want, netip.Addr.Compare)
	want = slices.Compact(want)
	if !slices.Equal(want, h.held) {
		h.k.calls = append(h.k.calls, "address")
	}
	h.held = want
	h.check("address")
	return h.fail
}

func (h *holder) Verify(context.Context) (bool, error) { return h.k.intact, h.fail }

func (h *holder) Held() []netip.Addr { return h.held }

// check wants every open socket that is not on a node port to have its address.
func (h *holder) check(call string) {
	h.k.t.Helper()
	for _, f := range h.open() {
		if !f.Addr.Addr().IsUnspecified() && !slices.Contains(h.held, f.Addr.Addr()) {
			h.k.t.Fatalf("after %s: a socket is open on %s, which the host does not hold; calls %v", call, f, h.k.calls)
		}
	}
}

func (h *holder) open() (out []lb.Frontend) {
	for addr := range h.k.streams {
		out = append(out, lb.Frontend{Protocol: lb.TCP, Addr: addr})
	}
	for f := range h.k.open {
		out = append(out, f)
	}
	return out
}

// direct returns an agent that listens on the addresses themselves.
func direct(t *testing.T) (*Agent, *kernel, *holder) {
	a, k := newAgent(t)
	h := &holder{k: k}
	a.Families[0], a.TCPPort, k.direct = Family{Addresses: &Holding{h.Sync, h.Verify, h.Held}}, 0, h
	return a, k, h
}

func TestAddressOrder(t *testing.T) {
	a, k, h := direct(t)
	apply := func(want string, services ...*lb.Service) {
		t.Helper()
		if err := a.Apply(t.Context(), Desired{Services: services}); err != nil {
			t.Fatal(err)
		}
		if got := k.order(); got != want {
			t.Errorf("calls = %s, want %s", got, want)
		}
	}
	one, two := service(lb.UDP, "one", 1, 1), service(lb.TCP, "two", 2, 2)
	second := service(lb.UDP, "one", 1, 1)
	second.ID.Port, second.Addresses = "second", []lb.Address{{Addr: netip.AddrPortFrom(one.Addresses[0].Addr.Addr(), 54)}}

	apply("address table listen", one)
	apply("table", one)
	apply("table listen", one, second)                      // the address is there
	apply("table unlisten table", second)                   // and stays with the second port
	apply("address table hold unlisten table address", two) // add and remove at once
	apply("table release", service(lb.TCP, "two", 2))       // no endpoints: the host refuses, having the address
	if len(h.held) != 1 || len(h.open()) != 0 {
		t.Errorf("without endpoints: held %v, open %v", h.held, h.open())
	}
	apply("table table address")
	if len(h.held) != 0 {
		t.Errorf("held at the end: %v", h.held)
	}
}

// TestAddressFails: what cannot be held keeps nothing else from being served, and is
// tried again.
func TestAddressFails(t *testing.T) {
	a, k, h := direct(t)
	h.fail = errors.New("the interface is gone")
	if err := a.Apply(t.Context(), Desired{Services: []*lb.Service{service(lb.TCP, "web", 1, 1)}}); !errors.Is(err, h.fail) {
		t.Errorf("Apply = %v", err)
	}
	if len(k.streams) != 1 {
		t.Errorf("open: %v", k.streams)
	}
	k.intact = true
	if got := a.intact(t.Context()); got != true {
		t.Error("what cannot be verified is taken for lost")
	}
	h.fail, k.intact = nil, false
	if a.intact(t.Context()) {
		t.Error("lost addresses are not noticed")
	}
}

// TestHeldIsNotLocal: addresses held for Services are not the node's, on which node
// ports are served and whose change is a reason to apply again.
func TestHeldIsNotLocal(t *testing.T) {
	a, k, h := direct(t)
	k.intact = true
	node := netip.MustParseAddr("192.0.2.10")
	a.LocalAddrs = func() ([]netip.Addr, error) { return append([]netip.Addr{node}, h.held...), nil }
	var seen []netip.Addr
	a.NodePorts = func(local []netip.Addr) []netip.Addr { seen = local; return local }
	for range 2 {
		if err := a.Apply(t.Context(), Desired{Services: []*lb.Service{service(lb.TCP, "web", 1, 1)}}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(seen, []netip.Addr{node}) || !a.intact(t.Context()) {
			t.Errorf("node ports are served on %v, want %v", seen, node)
		}
	}
}

// TestRandomAddresses is TestRandomChanges without steering.
func TestRandomAddresses(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	a, k, h := direct(t)
	for range 3000 {
		var services []*lb.Service
		for i := range 6 {
			if r.IntN(2) == 0 {
				continue
			}
			s := service([]lb.Protocol{lb.TCP, lb.UDP}[r.IntN(2)], fmt.Sprint("s", i), byte(r.IntN(5)))
			if r.IntN(3) == 0 {
				s.Addresses = append(s.Addresses, lb.Address{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 1, byte(r.IntN(5))}), 53)})
			}
			if r.IntN(4) > 0 {
				s.Backends = service(lb.TCP, "", 0, byte(1+r.IntN(3))).Backends
			}
			services = append(services, s)
		}
		if err := a.Apply(t.Context(), Desired{Services: services}); err != nil {
			t.Fatal(err)
		}
		k.calls = nil
		table, _ := lb.NewTable(services, lb.Node{})
		listening := 0
		for _, s := range table.Services() {
			for _, addr := range s.Addresses {
				if !slices.Contains(h.held, addr.Addr.Addr()) {
					t.Fatalf("%s of %s is not held", addr.Addr, s.ID)
				}
				if len(s.Backends) > 0 {
					listening++
				}
			}
		}
		if got := len(h.open()); got != listening {
			t.Fatalf("%d sockets open, want %d", got, listening)
		}
	}
}

// TestIdleSCTP: without endpoints a socket of SCTP is open where nothing else refuses.
func TestIdleSCTP(t *testing.T) {
	a, _, h := direct(t)
	sockets := false
	a.RefuseSCTP = func() bool { return sockets }
	idle := service(lb.SCTP, "sig", 1)
	idle.Addresses = append(idle.Addresses, lb.Address{Addr: netip.MustParseAddrPort("0.0.0.0:30868"), Kind: lb.NodePort})
	for _, want := range []int{0, 2, 0} {
		sockets = want > 0
		if err := a.Apply(t.Context(), Desired{Services: []*lb.Service{idle, service(lb.TCP, "web", 2)}}); err != nil {
			t.Fatal(err)
		}
		if got := len(h.open()); got != want {
			t.Errorf("open: %v, want %d", h.open(), want)
		}
	}
}
