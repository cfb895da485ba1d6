package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

func service(protocol lb.Protocol, name string, ip byte, backends ...byte) *lb.Service {
	s := &lb.Service{ID: lb.ID{Namespace: "default", Name: name, Protocol: protocol}}
	s.Addresses = []lb.Address{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, ip}), 53)}}
	for _, b := range backends {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, b}), 53)
		s.Backends = append(s.Backends, lb.Backend{Addr: at, Ready: true, Serving: true})
	}
	return s
}

// withEngines returns an agent with both engines for IPv4.
func withEngines(t *testing.T) (*Agent, *kernel, *inKernel, *inKernel) {
	a, k := newAgent(t)
	a.Log = zap.NewNop()
	ipt, ipvs := &inKernel{k: k, name: "iptables", intact: true}, &inKernel{k: k, name: "ipvs", intact: true}
	a.Families[0].Engines = [pathCount]Engine{IPTables: ipt, IPVS: ipvs}
	k.intact = true
	return a, k, ipt, ipvs
}

func requesting(s *lb.Service, path string) *lb.Service {
	other := *s
	other.Policies = &lb.Policies{DataPath: path}
	return &other
}

// direct returns an agent that listens on the addresses themselves.
func direct(t *testing.T) (*Agent, *kernel, *holder) {
	a, k := newAgent(t)
	return a, k, hold(a, k)
}

// hold has an agent listen on the addresses themselves.
func hold(a *Agent, k *kernel) *holder {
	h := &holder{k: k}
	a.Families[0], a.tcpPort, k.direct = Family{Addresses: &Holding{h.Sync, h.Verify, h.Held}}, 0, h
	return h
}

// mustApply applies Services.
func mustApply(t *testing.T, a *Agent, services ...*lb.Service) {
	t.Helper()
	if err := a.Apply(t.Context(), Desired{Services: lists.Of(services)}); err != nil {
		t.Fatal(err)
	}
}

// running lets Run of an agent run, until the function that it returns is called.
func running(t *testing.T, a *Agent) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { a.Run(ctx); close(ended) }()
	return func() { cancel(); <-ended }
}

// seeded returns random numbers, whose seed it logs.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// someServices returns random Services, which may share addresses.
func someServices(r *rand.Rand, nodePorts bool, protocols ...lb.Protocol) (services []*lb.Service) {
	for i := range 6 {
		if r.IntN(2) == 0 {
			continue
		}
		s := service(protocols[r.IntN(len(protocols))], fmt.Sprint("s", i), byte(r.IntN(5)))
		if r.IntN(3) == 0 {
			s.Addresses = append(s.Addresses, service(lb.TCP, "", byte(10+r.IntN(5))).Addresses...)
		}
		if nodePorts && r.IntN(3) == 0 {
			s.Addresses = append(s.Addresses, nodePort(uint16(30000+r.IntN(5))))
		}
		if r.IntN(4) > 0 {
			s.Backends = service(lb.TCP, "", 0, byte(1+r.IntN(3))).Backends
		}
		services = append(services, s)
	}
	return services
}

func nodePort(port uint16) lb.Address {
	return lb.Address{Kind: lb.NodePort, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), port)}
}

// TestRandomChanges walks through random sets of Services, in which addresses
// move between Services and steering fails now and then; kernel.check is the test.
func TestRandomChanges(t *testing.T) {
	testbed.Sequential(t)
	r := seeded(t)
	a, k := newAgent(t)
	for range 3000 {
		services := someServices(r, true, lb.TCP, lb.UDP, lb.SCTP)
		k.fail = nil
		if r.IntN(5) == 0 {
			k.fail = errors.New("xtables lock held by another program")
		}
		err := a.Apply(t.Context(), Desired{Services: lists.Of(services)})
		if err != nil && (k.fail == nil || !errors.Is(err, k.fail)) {
			t.Fatalf("Apply = %v, want %v", err, k.fail)
		} else if k.calls = nil; err != nil {
			continue
		}
		table := a.planner.table
		nodePorts := 0
		for _, s := range table.Services() {
			for _, addr := range s.Addresses {
				f := lb.Frontend{Protocol: s.Protocol, Addr: addr.Addr}
				if addr.Kind == lb.NodePort {
					nodePorts++
					if _, open := k.open[f]; !open {
						t.Fatalf("node port %s of %s is not held", f, s.ID)
					}
					continue
				}
				if _, steered := k.steered[f]; steered != (len(s.Backends) > 0) {
					t.Fatalf("%s of %s with %d backends: steered is %v", f, s.ID, len(s.Backends), steered)
				}
			}
		}
		ported := 0
		for f := range k.steered {
			if f.Protocol != lb.TCP {
				ported++
			}
		}
		if open := len(k.open); open > ported+nodePorts {
			t.Fatalf("%d sockets open for %d proxy ports and %d node ports", open, ported, nodePorts)
		}
	}
}

// TestStaleRepair: rules that cannot be repaired make the agent unhealthy too.
func TestStaleRepair(t *testing.T) {
	a, k := newAgent(t)
	a.VerifyEvery = time.Second
	for _, fail := range []error{nil, errors.New("no")} {
		k.fail = fail
		a.rewrite()
		if _, err := a.apply(t.Context(), a.want); (err != nil) != (fail != nil) {
			t.Fatal(err)
		}
		later := time.Now().Add(2 * time.Second)
		if s := a.Status(); s.Healthy(later) != (fail == nil) || !s.Healthy(time.Now()) {
			t.Errorf("after %v: %+v", fail, s)
		}
	}
}

// TestStuck: a turn of Run that does not end makes the agent unhealthy, also if nothing waits.
func TestStuck(t *testing.T) {
	a, _ := newAgent(t)
	now := time.Now()
	a.progress.turned(now.Add(-sweepEvery - 2*verifyEvery))
	if s := a.Status(); !s.QueuedSince.IsZero() || s.Healthy(now) {
		t.Errorf("while it is stuck: %+v", s)
	}
	a.progress.turned(time.Time{})
	if s := a.Status(); !s.Healthy(now) {
		t.Errorf("after its end: %+v", s)
	}
}

// TestRun: what is submitted is applied, the newest wins, a failure is tried again.
func TestRun(t *testing.T) {
	a, k := newAgent(t)
	a.Log = zap.NewNop() // it goes on after the test may have ended
	done := make(chan error, 10)
	var observed Changes // of the attempt that succeeded, read after Run has ended
	a.Observe = func(at Attempt) {
		if at.Err == nil {
			observed = at.Changes
		}
		done <- at.Err
	}
	change := func() Changes { return Changes{Services: 1, Endpoints: 2, Triggers: []Trigger{{At: time.Now()}}} }
	k.fail = errors.New("no")
	stop := running(t, a)

	a.Submit(Desired{Services: lists.Of([]*lb.Service{service(lb.TCP, "one", 1, 1)}), Changes: change()})
	if err := <-done; err == nil {
		t.Fatal("a failing change was applied")
	}
	if s := a.Status(); s.QueuedSince.IsZero() || !s.Healthy(time.Now()) || s.Healthy(time.Now().Add(2*verifyEvery)) ||
		s.ServicesPending != 1 || s.EndpointsPending != 2 {
		t.Errorf("status while a change waits = %+v", s)
	}
	k.fail = nil // read by Run only after its retry timer or the next token
	a.Submit(Desired{Services: lists.Of([]*lb.Service{service(lb.TCP, "two", 2, 2)}), Changes: change()})
	for err := range done {
		if err == nil {
			break
		}
	}
	stop()
	if s := a.Status(); !s.QueuedSince.IsZero() || s.Services != 1 || s.Failures != 1 || s.Applied != 1 ||
		s.ServiceChanges != 2 || s.EndpointChanges != 4 || s.ServicesPending != 0 || s.EndpointsPending != 0 {
		t.Errorf("status = %+v", s)
	}
	if observed.Services != 2 || observed.Endpoints != 4 || len(observed.Triggers) != 2 {
		t.Errorf("came into force = %+v", observed)
	}
	newest := lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort("10.96.0.2:53")}
	if _, ok := k.steered[newest]; !ok || len(k.steered) != 1 {
		t.Errorf("steered = %v, want the newest only", k.steered)
	}
}

// TestAdoptedPortsAreReplaced: proxy ports of the process before that are bound to another
// address, or are outside of the range, are replaced by such as this one would open.
func TestAdoptedPortsAreReplaced(t *testing.T) {
	one, two, three := service(lb.UDP, "one", 1, 1), service(lb.SCTP, "two", 2, 1), service(lb.UDP, "three", 3, 1)
	services := []*lb.Service{one, two, three}
	frontend := func(s *lb.Service) lb.Frontend { return lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr} }
	at := netip.MustParseAddrPort
	a, k := newAgent(t)
	a.Families[0].Bind, a.Ports = netip.MustParseAddr("192.0.2.10"), redirect.PortRange{First: 31000, Last: 31009}
	state := State{Services: services, Sockets: []Socket{{frontend(one), at("0.0.0.0:31001"), true},
		{frontend(two), at("192.0.2.10:40000"), true}, {frontend(three), at("192.0.2.10:31003"), true}}}
	for _, p := range state.Sockets {
		k.open[p.Frontend] = p.Addr.Port()
	}
	if err := a.Adopt(state); err != nil {
		t.Fatal(err)
	}
	mustApply(t, a, services...)
	if got, want := k.order(), "table listen unlisten listen steer leave settle"; got != want {
		t.Errorf("calls = %s, want %s", got, want)
	}
	for _, p := range a.State().Sockets {
		port := p.Addr.Port()
		if p.Addr.Addr() != a.Families[0].Bind || !a.Ports.Contains(port) || k.steered[p.Frontend] != port {
			t.Errorf("%s is served at %s and steered to %d", p.Frontend, p.Addr, k.steered[p.Frontend])
		}
	}
	if k.steered[frontend(three)] != 31003 {
		t.Errorf("a socket that fits was replaced: port %d", k.steered[frontend(three)])
	}
}

// TestTakeOver: what the start has found does not replace what has been submitted since, as while another process
// hands over.
func TestTakeOver(t *testing.T) {
	a, k := newAgent(t)
	first, second := service(lb.TCP, "web", 1, 1), service(lb.TCP, "web", 1, 2)
	a.TakeOver(Desired{Services: lists.Of([]*lb.Service{first})})
	a.Submit(Desired{Services: lists.Of([]*lb.Service{second})})
	a.TakeOver(Desired{Services: lists.Of([]*lb.Service{first})})
	done := make(chan error, 10)
	a.Observe = func(at Attempt) { done <- at.Err }
	stop := running(t, a)
	if err := <-done; err != nil {
		t.Error(err)
	}
	stop()
	if got := k.lb.Table().At(0).Backends[0].Addr; got != second.Backends[0].Addr {
		t.Errorf("endpoint %v is in force, want that of the newer state, %v", got, second.Backends[0].Addr)
	}
}
