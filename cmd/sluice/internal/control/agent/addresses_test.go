package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
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
	for f := range h.k.open {
		if !f.Addr.Addr().IsUnspecified() && !slices.Contains(h.held, f.Addr.Addr()) {
			h.k.t.Fatalf("after %s: a socket is open on %s, which the host does not hold; calls %v", call, f, h.k.calls)
		}
	}
}

// direct returns an agent that listens on the addresses themselves.
func direct(t *testing.T) (*Agent, *kernel, *holder) {
	a, k := newAgent(t)
	h := &holder{k: k}
	a.Families[0], a.tcpPort, k.direct = Family{Addresses: &Holding{h.Sync, h.Verify, h.Held}}, 0, h
	return a, k, h
}

func TestAddressOrder(t *testing.T) {
	a, k, h := direct(t)
	apply := ordered(t, a, k)
	one, two := service(lb.UDP, "one", 1, 1), service(lb.TCP, "two", 2, 2)
	second := service(lb.UDP, "one", 1, 1)
	second.ID.Port, second.Addresses = "second", []lb.Address{{Addr: netip.AddrPortFrom(one.Addresses[0].Addr.Addr(), 54)}}

	apply("address table listen", one)
	apply("table", one)
	apply("table listen", one, second)                        // the address is there
	apply("table unlisten table", second)                     // and stays with the second port
	apply("address table listen unlisten table address", two) // add and remove at once
	apply("table unlisten", service(lb.TCP, "two", 2))        // no endpoints: the host refuses, having the address
	if len(h.held) != 1 || len(k.open) != 0 {
		t.Errorf("without endpoints: held %v, open %v", h.held, k.open)
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
	if err := a.Apply(t.Context(), Desired{Services: lists.Of([]*lb.Service{service(lb.TCP, "web", 1, 1)})}); !errors.Is(err, h.fail) {
		t.Errorf("Apply = %v", err)
	}
	if len(k.open) != 1 {
		t.Errorf("open: %v", k.open)
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
		mustApply(t, a, service(lb.TCP, "web", 1, 1))
		if !slices.Equal(seen, []netip.Addr{node}) || !a.intact(t.Context()) {
			t.Errorf("node ports are served on %v, want %v", seen, node)
		}
	}
}

// TestRandomAddresses is TestRandomChanges without steering.
func TestRandomAddresses(t *testing.T) {
	testbed.Sequential(t)
	r := seeded(t)
	a, k, h := direct(t)
	for range 3000 {
		services := someServices(r, false, lb.TCP, lb.UDP)
		mustApply(t, a, services...)
		k.calls = nil
		table := a.planner.table
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
		if got := len(k.open); got != listening {
			t.Fatalf("%d sockets open, want %d", got, listening)
		}
	}
}

// TestIdleSCTP: without endpoints a socket of SCTP is open where nothing else refuses.
func TestIdleSCTP(t *testing.T) {
	a, k, _ := direct(t)
	sockets := false
	a.RefuseSCTP = func() bool { return sockets }
	idle := service(lb.SCTP, "sig", 1)
	idle.Addresses = append(idle.Addresses, lb.Address{Addr: netip.MustParseAddrPort("0.0.0.0:30868"), Kind: lb.NodePort})
	for _, want := range []int{0, 2, 0} {
		sockets = want > 0
		mustApply(t, a, idle, service(lb.TCP, "web", 2))
		if got := len(k.open); got != want {
			t.Errorf("open: %v, want %d", k.open, want)
		}
	}
}
