package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/redirect"
)

// kernel stands in for sockets and steering, and checks after every call what the
// agent promises: whatever is steered has a socket, and a place in the table.
type kernel struct {
	t       *testing.T
	lb      *balancer.Balancer
	open    map[lb.Frontend]uint16
	former  map[lb.Frontend]uint16 // ports before Move, until Settle
	steered map[lb.Frontend]uint16
	entries map[lb.Frontend]redirect.Entry
	host    redirect.Host
	mu      sync.Mutex // guards calls: engines may write beside
	calls   []string
	taken   map[uint16]bool // ports that others have
	port    uint16
	intact  bool                 // what Verify finds
	fail    error                // what Sync returns, after it has done its work
	proxies []netip.AddrPort     // of TCP
	direct  *holder              // nil if packets are steered
	flowing map[lb.Frontend]bool // these have flows
	stale   stale
	moved   func() // called when a path has started or stopped forwarding
}

// errTaken is what this system says of a port that another program has.
var errTaken = func() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	_, err = net.Listen("tcp", l.Addr().String())
	return err
}()

func newAgent(t *testing.T) (*Agent, *kernel) {
	k := &kernel{t: t, lb: new(balancer.Balancer), open: map[lb.Frontend]uint16{}, former: map[lb.Frontend]uint16{},
		steered: map[lb.Frontend]uint16{}, entries: map[lb.Frontend]redirect.Entry{}, taken: map[uint16]bool{}, port: 20000}
	k.proxies = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:1")}
	servers := map[lb.Protocol]Sockets{lb.TCP: streams{k}, lb.UDP: k, lb.SCTP: associations{k}}
	a := New(Config{LB: k.lb, Servers: servers, Proxy: proxy{k},
		Moving:   &Moving{k.Move, k.Flows, k.Leave, k.Settle},
		Stale:    &k.stale,
		Families: [2]Family{{Steer: &Steering{k.Sync, k.Verify}, Bind: netip.IPv4Unspecified()}},
		Now:      func() int64 { return 0 }, Log: zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))})
	a.tcpPort = 1
	return a, k
}

// proxy is the proxy ports of TCP of a kernel.
type proxy struct{ k *kernel }

func (p proxy) ListenSteered(at netip.AddrPort) (netip.AddrPort, error) {
	if at.Port() == 0 {
		p.k.port++
		at = netip.AddrPortFrom(at.Addr(), p.k.port)
	}
	if p.k.taken[at.Port()] && at.Addr().Is4() || slices.Contains(p.k.proxies, at) {
		return netip.AddrPort{}, errTaken
	}
	p.k.proxies = append(p.k.proxies, at)
	return at, nil
}

func (p proxy) Unlisten(at netip.AddrPort) {
	i := slices.Index(p.k.proxies, at)
	if i < 0 {
		p.k.t.Fatalf("%s is closed, which is not open", at)
	}
	p.k.proxies = slices.Delete(p.k.proxies, i, i+1)
}

func (p proxy) Steered() []netip.AddrPort { return slices.Clone(p.k.proxies) }

// associations is the SCTP side of a kernel, which is as UDP's but told of tables
// after it.
type associations struct{ *kernel }

func (a associations) TableChanged() {
	if a.calls[len(a.calls)-1] != "table" {
		a.t.Fatalf("SCTP is told of a table and UDP is not: %v", a.calls)
	}
}

// streams is the TCP side of a kernel, which is not told of tables.
type streams struct{ *kernel }

func (streams) TableChanged() {}

// listens reports whether there is a socket of TCP at an address.
func (k *kernel) listens(addr netip.AddrPort) bool {
	_, ok := k.open[lb.Frontend{Protocol: lb.TCP, Addr: addr}]
	return ok
}

func (k *kernel) check(call string) {
	k.t.Helper()
	k.mu.Lock()
	k.calls = append(k.calls, call)
	k.mu.Unlock()
	if k.direct != nil {
		k.direct.check(call)
	}
	for f, port := range k.steered {
		if f.Protocol != lb.TCP && k.open[f] != port && k.former[f] != port {
			k.t.Fatalf("after %s: %s is steered to port %d, where no socket is; calls %v", call, f, port, k.calls)
		}
		if _, _, ok := k.lb.Table().Lookup(f); !ok {
			k.t.Fatalf("after %s: %s is steered but not in the table; calls %v", call, f, k.calls)
		}
	}
	for f := range k.open {
		if _, _, ok := k.lb.Table().Lookup(f); !ok && f.Protocol == lb.TCP {
			k.t.Fatalf("after %s: node port %s is open but not in the table; calls %v", call, f, k.calls)
		}
	}
}

func (k *kernel) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	port := addr.Port()
	if port == 0 {
		k.port++
		port = k.port
	}
	for other, taken := range k.open {
		if taken == port && other.Protocol == f.Protocol && f.Protocol != lb.TCP && k.direct == nil {
			return netip.AddrPort{}, errTaken
		}
	}
	if k.taken[port] {
		return netip.AddrPort{}, errTaken
	}
	if _, ok := k.open[f]; ok {
		k.t.Fatalf("%s is opened twice", f)
	}
	k.open[f] = port
	k.check("listen")
	return netip.AddrPortFrom(addr.Addr(), port), nil
}

func (k *kernel) Unlisten(f lb.Frontend) {
	if _, ok := k.open[f]; !ok {
		k.t.Fatalf("%s is closed, which is not open", f)
	}
	delete(k.open, f)
	k.check("unlisten")
}

func (k *kernel) Move(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	before := k.open[f]
	delete(k.open, f)
	k.former[f] = before
	got, err := k.Listen(f, addr)
	if err != nil {
		k.open[f] = before
		delete(k.former, f)
	}
	return got, err
}

func (k *kernel) Leave(f lb.Frontend) {
	if k.steered[f] != k.open[f] {
		k.t.Fatalf("%s leaves port %d, where it is still steered to; calls %v", f, k.former[f], k.calls)
	}
	k.check("leave")
}

func (k *kernel) Flows(f lb.Frontend) int {
	if k.flowing[f] {
		return 1
	}
	return 0
}

func (k *kernel) Settle(f lb.Frontend) {
	delete(k.former, f)
	k.check("settle")
}

func (k *kernel) TableChanged() { k.check("table") }

func (k *kernel) Sync(_ context.Context, u redirect.Update) error {
	if k.host = u.Host; u.Whole {
		clear(k.entries)
	}
	for _, e := range u.Remove {
		if _, ok := k.entries[e.Frontend]; !ok {
			k.t.Fatalf("%s is removed, which is not there", e.Frontend)
		}
		delete(k.entries, e.Frontend)
	}
	clear(k.steered)
	for _, e := range u.Add {
		if was, ok := k.entries[e.Frontend]; ok {
			k.t.Fatalf("%s is added as %+v and is there as %+v", e.Frontend, e, was)
		}
		k.entries[e.Frontend] = e
	}
	for f, e := range k.entries {
		if e.Action == redirect.Redirect && f.Protocol == lb.TCP {
			e.Port = u.Host.TCPPort
		}
		if e.Action == redirect.Redirect {
			k.steered[f] = e.Port
		}
	}
	k.check("steer")
	if k.moved != nil {
		k.moved()
	}
	return k.fail
}

func (k *kernel) Verify(context.Context) (bool, error) { return k.intact, k.fail }

func service(protocol lb.Protocol, name string, ip byte, backends ...byte) *lb.Service {
	s := &lb.Service{ID: lb.ID{Namespace: "default", Name: name, Protocol: protocol}}
	s.Addresses = []lb.Address{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, ip}), 53)}}
	for _, b := range backends {
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, b}), 53), Ready: true, Serving: true})
	}
	return s
}

func (k *kernel) order() string { s := strings.Join(k.calls, " "); k.calls = nil; return s }

// mustApply applies Services.
func mustApply(t *testing.T, a *Agent, services ...*lb.Service) {
	t.Helper()
	if err := a.Apply(t.Context(), Desired{Services: lists.Of(services)}); err != nil {
		t.Fatal(err)
	}
}

// ordered returns a function that applies Services and wants these calls for it.
func ordered(t *testing.T, a *Agent, k *kernel) func(want string, services ...*lb.Service) {
	return func(want string, services ...*lb.Service) {
		t.Helper()
		mustApply(t, a, services...)
		if got := k.order(); got != want {
			t.Errorf("calls = %s, want %s", got, want)
		}
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

func TestOrder(t *testing.T) {
	a, k := newAgent(t)
	apply := ordered(t, a, k)
	one, two := service(lb.UDP, "one", 1, 1), service(lb.UDP, "two", 2, 2)
	apply("table listen steer", one)
	apply("table", one)                                      // nothing opened twice
	apply("table", service(lb.UDP, "one", 1, 2))             // another endpoint
	apply("table listen steer unlisten table", two)          // add and remove at once, steering changed once
	apply("table steer unlisten", service(lb.UDP, "two", 2)) // no endpoints: refused, no socket
	apply("table steer table")
	if n := len(k.open) + len(k.steered) + k.lb.Table().Len(); n != 0 {
		t.Errorf("%d things left at the end", n)
	}
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
		if err := a.Apply(t.Context(), Desired{Services: lists.Of(services)}); err != nil && (k.fail == nil || !errors.Is(err, k.fail)) {
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

func TestPortsInUse(t *testing.T) {
	a, k := newAgent(t)
	a.Ports = redirect.PortRange{First: 30000, Last: 30001}
	k.taken[30000] = true
	mustApply(t, a, service(lb.UDP, "one", 1, 1))
	// The range is full now: the second has no port, the first goes on, TCP too.
	services := []*lb.Service{service(lb.UDP, "one", 1, 1), service(lb.UDP, "two", 2, 2), service(lb.TCP, "web", 3, 3)}
	if err := a.Apply(t.Context(), Desired{Services: lists.Of(services)}); err == nil || !strings.Contains(err.Error(), "default/two") {
		t.Errorf("Apply with a full range = %v, want an error that names the Service", err)
	}
	if len(k.steered) != 2 {
		t.Errorf("%d frontends steered, want 2", len(k.steered))
	}
	delete(k.taken, 30000)
	if err := a.Apply(t.Context(), Desired{Services: lists.Of(services)}); err != nil || len(k.steered) != 3 {
		t.Errorf("Apply with a free port = %v, %d frontends steered; want 3", err, len(k.steered))
	}
}

func TestIntact(t *testing.T) {
	a, k := newAgent(t)
	a.Log = zap.NewNop()
	for _, test := range []struct {
		found bool
		err   error
		want  bool
	}{{true, nil, true}, {false, nil, false}, {false, errors.New("cannot look"), true}} {
		k.intact, k.fail = test.found, test.err
		if got := a.intact(t.Context()); got != test.want {
			t.Errorf("intact when Verify = %v, %v: %v", test.found, test.err, got)
		}
	}
	k.fail = nil
	mustApply(t, a)
	if n := a.Status().Repairs; n != 1 {
		t.Errorf("%d repairs counted, want 1", n)
	}
}

// TestNodePortConflict: what another program has is a conflict, which touches nothing
// else and is over when it can be had.
func TestNodePortConflict(t *testing.T) {
	a, k := newAgent(t)
	node := netip.MustParseAddr("192.0.2.10")
	a.LocalAddrs = func() ([]netip.Addr, error) { return []netip.Addr{node}, nil }
	a.NodePorts = func(local []netip.Addr) []netip.Addr { return local }
	s := service(lb.TCP, "web", 1, 1)
	s.Addresses = append(s.Addresses, nodePort(30080),
		nodePort(30081))
	k.taken[30080] = true
	var told []string
	a.Observe = func(at Attempt) {
		for _, c := range at.Conflicts {
			told = append(told, fmt.Sprint(c.Service.Name, " ", c.Frontend, " ", c.Err != nil))
		}
	}
	mustApply(t, a, s)
	if n := a.Status().Conflicts; n != 1 {
		t.Errorf("%d conflicts, want 1", n)
	}
	if !k.listens(netip.AddrPortFrom(node, 30081)) || len(k.steered) != 1 || len(k.entries) != 2 {
		t.Errorf("the rest of the Service is not served: %v, %v", k.open, k.entries)
	}
	heir := *s // the port goes to another Service while another program still has it
	heir.Name = "heir"
	for _, services := range [][]*lb.Service{{s}, {&heir}, {&heir}} {
		mustApply(t, a, services...)
	}
	k.taken[30080] = false
	if err := a.Apply(t.Context(), Desired{Services: lists.Of([]*lb.Service{&heir})}); err != nil || a.Status().Conflicts != 0 || len(k.open) != 2 {
		t.Errorf("after the other has gone: %v, %+v, %v", err, a.Status(), k.open)
	}
	const f = " TCP 192.0.2.10:30080 "
	if want := []string{"web" + f + "true", "web" + f + "false", "heir" + f + "true", "heir" + f + "false"}; !slices.Equal(told, want) {
		t.Errorf("told of conflicts %q, want %q", told, want)
	}
	if err := a.Apply(t.Context(), Desired{}); err != nil || len(k.open) != 0 {
		t.Errorf("at the end: %v, open %v", err, k.open)
	}
}

// TestVerdicts: who is refused, dropped and held back by source goes into the plan.
func TestVerdicts(t *testing.T) {
	a, k := newAgent(t)
	s := service(lb.TCP, "web", 1, 1) // its endpoint is on another node
	local := func(kind lb.Kind, addr string) lb.Address {
		return lb.Address{Kind: kind, Local: true, Addr: netip.MustParseAddrPort(addr)}
	}
	sources := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	s.Addresses = []lb.Address{local(lb.ClusterIP, "10.96.0.1:80"), local(lb.ExternalIP, "198.51.100.1:80"),
		{Kind: lb.LoadBalancerIP, Addr: netip.MustParseAddrPort("198.51.100.2:80"), Sources: sources}}
	none := service(lb.UDP, "none", 2)
	inside := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	if err := a.Apply(t.Context(), Desired{Services: lists.Of([]*lb.Service{s, none}), Node: lb.Node{PodCIDRs: inside}}); err != nil {
		t.Fatal(err)
	}
	tcp := func(addr string) lb.Frontend {
		return lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort(addr)}
	}
	want := make(map[lb.Frontend]redirect.Entry)
	for _, e := range []redirect.Entry{
		{Frontend: tcp("198.51.100.1:80"), Action: redirect.Redirect, DropOutside: true},
		{Frontend: tcp("198.51.100.2:80"), Action: redirect.Redirect, Sources: sources},
		{Frontend: tcp("10.96.0.1:80"), Action: redirect.Drop, ClusterIP: true},
		{Frontend: lb.Frontend{Protocol: lb.UDP, Addr: none.Addresses[0].Addr}, Action: redirect.Refuse, ClusterIP: true},
	} {
		want[e.Frontend] = e
	}
	if diff := cmp.Diff(want, k.entries, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if k.host.TCPPort != 1 || !slices.Equal(k.host.Inside, inside) {
		t.Errorf("host %+v", k.host)
	}
	if n := a.Status().NoLocal; n != [2]NoLocal{{Internal: 1, External: 1}, {}} {
		t.Errorf("without a local endpoint: %+v", n)
	}
}

// TestAddressesChange: a new address of the node is a reason to apply again.
func TestAddressesChange(t *testing.T) {
	a, k := newAgent(t)
	k.intact = true
	local := []netip.Addr{netip.MustParseAddr("192.0.2.10")}
	a.LocalAddrs = func() ([]netip.Addr, error) { return local, nil }
	if err := a.Apply(t.Context(), Desired{}); err != nil || !a.intact(t.Context()) {
		t.Fatalf("after Apply: %v", err)
	}
	local = append(local, netip.MustParseAddr("192.0.2.11"))
	if a.intact(t.Context()) {
		t.Error("a new address was not noticed")
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
	if _, ok := k.steered[lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort("10.96.0.2:53")}]; !ok || len(k.steered) != 1 {
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
	ordered(t, a, k)("table listen unlisten listen steer leave settle", services...)
	for _, p := range a.State().Sockets {
		if p.Addr.Addr() != a.Families[0].Bind || !a.Ports.Contains(p.Addr.Port()) || k.steered[p.Frontend] != p.Addr.Port() {
			t.Errorf("%s is served at %s and steered to %d", p.Frontend, p.Addr, k.steered[p.Frontend])
		}
	}
	if k.steered[frontend(three)] != 31003 {
		t.Errorf("a socket that fits was replaced: port %d", k.steered[frontend(three)])
	}
}

// TestPrime: node ports are open before the first rules are written, those that can be had, and those that the first
// plan does not have are closed by it.
func TestPrime(t *testing.T) {
	a, k := newAgent(t)
	tcp, udp, other := service(lb.TCP, "tcp", 1, 1), service(lb.UDP, "udp", 2, 2), service(lb.TCP, "other", 3, 3)
	tcp.Addresses = append(tcp.Addresses, nodePort(30001))
	udp.Addresses = append(udp.Addresses, nodePort(30002))
	other.Addresses = append(other.Addresses, nodePort(30003))
	k.taken[30003] = true
	testbed.Check(t, a.Prime(Desired{Services: lists.Of([]*lb.Service{tcp, udp, other})}, redirect.Leftover{}))
	for addr, want := range map[lb.Frontend]bool{
		{Protocol: lb.TCP, Addr: nodePort(30001).Addr}: true,
		{Protocol: lb.UDP, Addr: nodePort(30002).Addr}: true,
		{Protocol: lb.TCP, Addr: nodePort(30003).Addr}: false,
	} {
		if _, open := k.open[addr]; open != want {
			t.Errorf("node port %s open: %v, want %v", addr, open, want)
		}
	}
	if len(k.steered) > 0 {
		t.Errorf("steered: %v", k.steered)
	}
	if n := len(a.sockets.news); n != 0 {
		t.Errorf("%d conflicts are reported before the start", n)
	}
	mustApply(t, a, tcp) // kernel.Listen fails where one is opened twice
	if len(k.open) != 1 || !k.listens(nodePort(30001).Addr) {
		t.Errorf("open after the first change: %v", k.open)
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

// TestRepairsWhileAnEngineFails: rules that another program has removed are written again also while a change fails for
// a reason that is not theirs.
func TestRepairsWhileAnEngineFails(t *testing.T) {
	a, k, ipt, _ := withEngines(t)
	ipt.fail, k.intact = errors.New("no"), false
	done := make(chan error, 10)
	a.Observe = func(at Attempt) { done <- at.Err }
	stop := running(t, a)
	a.Submit(Desired{Services: lists.Of([]*lb.Service{service(lb.TCP, "web", 1, 1), requesting(service(lb.TCP, "own", 2, 1),
		"iptables")})})
	for i := range 3 {
		if err := <-done; err == nil {
			t.Fatal("the engine does not fail")
		}
		if i == 0 {
			a.Suspect()
		}
	}
	stop()
	steered := 0
	for _, call := range k.calls {
		if call == "steer" {
			steered++
		}
	}
	if steered < 2 {
		t.Errorf("calls = %v: nothing was written again", k.calls)
	}
}
