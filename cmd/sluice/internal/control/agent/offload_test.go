package agent

import (
	"errors"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// TestOffload: at the end the kernel gets what user space has, as far as it can, with this node as the client; what
// cannot be moved stays, and an error is one to try again after.
func TestOffload(t *testing.T) {
	a, k, ipt, ipvs := withEngines(t)
	node := service(lb.TCP, "node", 2, 1)
	node.Addresses = append(node.Addresses, nodePort(30080))
	services := []*lb.Service{service(lb.UDP, "dns", 1, 1), node, requesting(service(lb.TCP, "own", 3, 1), "iptables"),
		requesting(service(lb.TCP, "ipvs", 4, 1), "ipvs")}
	mustApply(t, a, services...)
	if left, err := a.Offload(t.Context(), [2]bool{}); left != 2 || err != nil || len(ipt.services) != 1 {
		t.Errorf("without forwarding: %d left, %v, in iptables %v", left, err, ipt.services)
	}
	k.fail = errors.New("xtables lock held by another program")
	if _, err := a.Offload(t.Context(), [2]bool{true, true}); !errors.Is(err, k.fail) || len(k.open) != 2 {
		t.Errorf("Offload = %v, open %v", err, k.open)
	}
	k.fail, k.calls = nil, nil
	left, err := a.Offload(t.Context(), [2]bool{true, true})
	if left != 0 || err != nil || len(k.steered) != 0 || len(ipt.services) != 3 || len(ipvs.services) != 1 {
		t.Errorf("%d left, %v; steered %v, in iptables %v, in ipvs %v; calls %v", left, err, k.steered, ipt.services,
			ipvs.services, k.calls)
	}
	for id, s := range ipt.services {
		if s.Masquerade != (id.Name != "own") {
			t.Errorf("%s is masqueraded: %v", id, s.Masquerade)
		}
	}
	if !k.listens(nodePort(30080).Addr) {
		t.Error("the socket of the node port has gone, which serves loopback addresses")
	}
	for range 2 { // the second has nothing to do
		if err := a.Withdraw(t.Context()); err != nil || len(k.open) != 0 || len(a.State().Sockets) != 0 {
			t.Errorf("Withdraw = %v, open %v, for the next %v", err, k.open, a.State().Sockets)
		}
	}
	if got := a.Status().Paths; got[Userspace] != 0 || got[IPTables] != 3 {
		t.Errorf("paths %v", got)
	}
}

// TestOffloadChoice: rules of nftables are taken before those of iptables.
func TestOffloadChoice(t *testing.T) {
	a, k, ipt, _ := withEngines(t)
	nft := &inKernel{k: k, name: "nftables", intact: true}
	a.Families[0].Engines[NFTables] = nft
	mustApply(t, a, service(lb.TCP, "web", 1, 1), requesting(service(lb.TCP, "own", 2, 1), "iptables"))
	if left, err := a.Offload(t.Context(), [2]bool{true, true}); left != 0 || err != nil {
		t.Errorf("%d left, %v", left, err)
	}
	if len(nft.services) != 1 || len(ipt.services) != 1 {
		t.Errorf("in nftables %v, in iptables %v, want one in each", nft.services, ipt.services)
	}
}

// TestPROXYStaysInUserspace: a Service whose endpoints hear of clients by PROXY headers is in user space, whatever the
// mode and the annotation say, and until the end: an endpoint that waits for a header has no use for what the kernel
// forwards.
func TestPROXYStaysInUserspace(t *testing.T) {
	announced := requesting(service(lb.TCP, "web", 1, 1), "iptables")
	announced.Policies.ProxyProtocol = "v2"
	for _, mode := range Paths() {
		c := choose(announced, mode, new(abilities), new(lb.Policies))
		if c.Path != Userspace || c.Why != "annotation sluice.io/proxy-protocol" ||
			c.Fallback != "data path iptables has no proxy-protocol" {
			t.Errorf("in mode %s: %+v", mode, c)
		}
	}
	a, _, ipt, _ := withEngines(t)
	mustApply(t, a, announced)
	if left, err := a.Offload(t.Context(), [2]bool{true, true}); left != 1 || err != nil || len(ipt.services) != 0 {
		t.Errorf("%d left, %v, in iptables %v", left, err, ipt.services)
	}
}

// TestPoliciesKeepInUserspace: a Service that requests what the mode's path does not have is in user space, unless it
// requests the path by its name, or user space is not there; and when this process ends the kernel may have it.
func TestPoliciesKeepInUserspace(t *testing.T) {
	holding := func(path string) *lb.Service {
		s := requesting(service(lb.TCP, "web", 1, 1), path)
		s.Policies.Hold = 1e9
		return s
	}
	for _, mode := range Paths() {
		c := choose(holding(""), mode, new(abilities), new(lb.Policies))
		path, why := Userspace, "annotation sluice.io/hold, which data path "+mode.String()+" does not have"
		if mode == Userspace { // which has it
			path, why = mode, "--proxy-mode"
		}
		if c.Path != path || c.Why != why || c.Fallback != "" {
			t.Errorf("in mode %s: %+v", mode, c)
		}
		if c := choose(holding("nftables"), mode, new(abilities), new(lb.Policies)); c.Path != NFTables {
			t.Errorf("in mode %s, by name: %+v", mode, c)
		}
	}
	if c := choose(holding(""), NFTables, &abilities{Userspace: errNoEngine}, new(lb.Policies)); c.Path != NFTables {
		t.Errorf("without user space: %+v", c)
	}
	a, _, ipt, _ := withEngines(t)
	mustApply(t, a, holding(""))
	if left, err := a.Offload(t.Context(), [2]bool{true, true}); left != 0 || err != nil || len(ipt.services) != 1 {
		t.Errorf("%d left, %v, in iptables %v", left, err, ipt.services)
	}
}

// TestLeftover: what an earlier process has left to the kernel stays there until it is steered, also if the engine has
// something else to write first.
func TestLeftover(t *testing.T) {
	a, k, ipt, _ := withEngines(t)
	ipt.leftover = true
	services := []*lb.Service{service(lb.TCP, "web", 1, 1), requesting(service(lb.TCP, "own", 2, 1), "iptables")}
	ordered(t, a, k)("table iptables2 steer iptables1 ipvs0", services...)
	ordered(t, a, k)("table steer iptables0 table", services[:1]...)
}

// TestInherited: what the process before had in user space is not in the kernel for a moment when another one takes
// over, and what it had in the kernel stays there until it is steered.
func TestInherited(t *testing.T) {
	services := []*lb.Service{service(lb.UDP, "user", 1, 1), requesting(service(lb.TCP, "own", 2, 1), "iptables")}
	for _, test := range []struct {
		kernel []lb.ID
		want   string
	}{
		{[]lb.ID{services[1].ID}, "table iptables1 listen steer ipvs0"},
		{[]lb.ID{services[0].ID, services[1].ID}, "table iptables2 listen steer iptables1 ipvs0"},
	} {
		a, k, ipt, _ := withEngines(t)
		ipt.leftover = true
		testbed.Check(t, a.Adopt(State{Services: services, Kernel: test.kernel}))
		if s := a.State(); !slices.Equal(s.Kernel, test.kernel) {
			t.Errorf("before it has applied anything it passes on that the kernel has %v, want %v", s.Kernel, test.kernel)
		}
		ordered(t, a, k)(test.want, services...)
		if s := a.State(); len(s.Kernel) != 1 || s.Kernel[0] != services[1].ID {
			t.Errorf("the kernel has %v, want that which requests it", s.Kernel)
		}
	}
	a, _, _, _ := withEngines(t) // after a crash
	testbed.Check(t, a.Prime(Desired{Services: lists.Of(services)}, redirect.Leftover{}))
	if s := a.State(); len(s.Kernel) != len(services) {
		t.Errorf("before anything is applied the kernel may have %v, want all", s.Kernel)
	}
}
