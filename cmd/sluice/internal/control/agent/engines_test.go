package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// inKernel stands in for an engine.
type inKernel struct {
	k        *kernel
	name     string
	services map[lb.ID]*lb.Service // as passed
	has      map[lb.Frontend]lb.ID // as made
	intact   bool
	asked    func() // whether it is
	leftover bool
	fail     error

	clients map[lb.ID][]lb.Client
	forgets error // what Remember returns
}

func (e *inKernel) Clients(_ context.Context, s *lb.Service, _ int64) ([]lb.Client, error) {
	return e.clients[s.ID], nil
}

func (e *inKernel) Leftover(context.Context) (bool, error) { return e.leftover, nil }

func (e *inKernel) Remember(_ context.Context, s *lb.Service, clients []lb.Client) error {
	if e.forgets == nil {
		e.clients = map[lb.ID][]lb.Client{s.ID: clients}
	}
	return e.forgets
}

func (e *inKernel) Sync(_ context.Context, d lb.Delta, _ lb.Node) error {
	if d.Whole {
		e.services = make(map[lb.ID]*lb.Service)
	}
	for _, s := range d.Removed {
		if e.services[s.ID] == nil {
			e.k.t.Fatalf("%s: %s is removed, which is not there", e.name, s.ID)
		}
		delete(e.services, s.ID)
	}
	for _, s := range d.Added {
		if e.services[s.ID] != nil {
			e.k.t.Fatalf("%s: %s is added twice", e.name, s.ID)
		}
		e.services[s.ID] = s
	}
	for _, c := range d.Changed {
		if e.services[c.New.ID] != c.Old {
			e.k.t.Fatalf("%s: %s changes from what it was not", e.name, c.New.ID)
		}
		e.services[c.New.ID] = c.New
	}
	if e.fail != nil {
		return e.fail
	}
	e.has = make(map[lb.Frontend]lb.ID)
	for _, s := range e.services {
		for _, a := range s.Addresses {
			f := lb.Frontend{Protocol: s.Protocol, Addr: a.Addr}
			if other, ok := e.has[f]; ok { // nf_tables would refuse it
				e.k.t.Fatalf("%s: %s is of %s and of %s", e.name, f, other, s.ID)
			}
			e.has[f] = s.ID
		}
	}
	e.k.mu.Lock()
	e.k.calls = append(e.k.calls, fmt.Sprint(e.name, len(e.services)))
	e.k.mu.Unlock()
	if e.k.moved != nil {
		e.k.moved()
	}
	return nil
}

func (e *inKernel) Verify(context.Context) (bool, error) {
	if e.asked != nil {
		e.asked()
	}
	return e.intact, nil
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

// TestChoose: who forwards a Service, and what is said if it is not who should.
func TestChoose(t *testing.T) {
	all, none := abilities{}, abilities{NFTables: errNoEngine, IPTables: errNoEngine, IPVS: errors.New("no ip_vs in this kernel"), userspaceSCTP: errSCTP}
	kernelSCTP, old := abilities{userspaceSCTP: errSCTP}, abilities{userspaceSCTP: errSCTP, NFTables: errNoEngine}
	family := (&Family{}).abilities(true, nil)
	for _, test := range []struct {
		name      string
		protocol  lb.Protocol
		requested string
		mode      Path
		can       abilities
		want      Path
		fallback  string // a part of the reason; empty: none
	}{
		{"the mode", lb.TCP, "", Userspace, all, Userspace, ""},
		{"another mode", lb.UDP, "", IPVS, all, IPVS, ""},
		{"a request", lb.TCP, "iptables", Userspace, all, IPTables, ""},
		{"a request against the mode", lb.TCP, "userspace", IPTables, all, Userspace, ""},
		{"not there", lb.TCP, "ipvs", IPTables, abilities{IPVS: none[IPVS]}, Userspace, "no ip_vs in this kernel"},
		{"mode not there", lb.TCP, "", IPVS, none, Userspace, "ipvs is not available"},
		{"SCTP", lb.SCTP, "", Userspace, all, Userspace, ""},
		{"SCTP that user space does not forward", lb.SCTP, "", Userspace, kernelSCTP, NFTables, "SCTP"},
		{"SCTP that requests what there is not", lb.SCTP, "userspace", IPVS, kernelSCTP, NFTables, "SCTP"},
		{"SCTP without nftables", lb.SCTP, "", Userspace, old, IPTables, "SCTP"},
		{"queue", lb.TCP, "queue", Userspace, all, Queue, ""},
		{"mode queue", lb.UDP, "", Queue, all, Queue, ""},
		{"no queues", lb.TCP, "queue", NFTables, abilities{Queue: errNoEngine}, Userspace, "queue is not available"},
		{"SCTP by a request", lb.SCTP, "ipvs", Userspace, kernelSCTP, IPVS, ""},
		{"SCTP and no path for it", lb.SCTP, "", Userspace, none, None, "SCTP"},
		{"no such family", lb.TCP, "iptables", Userspace, family, None, "family"},
	} {
		s := requesting(service(test.protocol, "s", 1, 1), test.requested)
		c := choose(s, test.mode, &test.can, new(lb.Policies))
		if c.Path != test.want || (c.Fallback == "") != (test.fallback == "") || !strings.Contains(c.Fallback, test.fallback) {
			t.Errorf("%s: %s because %q, fallback %q; want %s, %q", test.name, c.Path, c.Why, c.Fallback, test.want, test.fallback)
		}
	}
}

// TestMoveOrder: a Service that moves is on its new path before it leaves the old.
func TestMoveOrder(t *testing.T) {
	a, k, _, _ := withEngines(t)
	apply := ordered(t, a, k)
	s := service(lb.UDP, "dns", 1, 1)
	apply("table listen steer iptables0 ipvs0", s) // what an earlier process has left goes last
	apply("table iptables1 steer unlisten", requesting(s, "iptables"))
	apply("table ipvs1 iptables0", requesting(s, "ipvs"))
	apply("table listen steer ipvs0", s)
	apply("table iptables1 steer unlisten", requesting(s, "iptables"))
	apply("table steer iptables0 table")
}

// TestForwarding: before an engine has something new it is said what.
func TestForwarding(t *testing.T) {
	a, _, ipt, _ := withEngines(t)
	var said []string
	a.Forwarding = func(d *lb.Delta) {
		for _, s := range d.Added {
			if ipt.services[s.ID] != nil {
				t.Errorf("%s is there already", s.ID)
			}
			said = append(said, s.ID.Name)
		}
	}
	web, dns := service(lb.TCP, "web", 1, 1), requesting(service(lb.UDP, "dns", 2, 1), "iptables")
	mustApply(t, a, web, dns)
	mustApply(t, a, requesting(web, "iptables"), dns)
	if want := []string{"dns", "web"}; !slices.Equal(said, want) {
		t.Errorf("%v is said, want %v", said, want)
	}
}

// TestMovesLeaveNoGap walks through random Services on random paths. At every moment
// each address that was served, and will be, is served on some path.
func TestMovesLeaveNoGap(t *testing.T) {
	testbed.Sequential(t)
	r := seeded(t)
	a, k, ipt, ipvs := withEngines(t)
	steady := make(map[lb.Frontend]bool) // served before and after
	served := func(f lb.Frontend) (steered, one, two bool) {
		_, steered = k.steered[f]
		_, one = ipt.has[f]
		_, two = ipvs.has[f]
		return steered, one, two
	}
	k.moved = func() {
		for f := range steady {
			if steered, one, two := served(f); !steered && !one && !two {
				t.Fatalf("%s is not served: %v", f, k.calls)
			}
		}
	}
	var before []*lb.Service
	for range 2000 {
		var services []*lb.Service
		for i := range 5 {
			if r.IntN(5) > 0 {
				s := service([]lb.Protocol{lb.TCP, lb.UDP}[i%2], fmt.Sprint("s", i), byte(i+1), byte(1+r.IntN(3)))
				services = append(services, requesting(s, []string{"", "userspace", "iptables", "ipvs"}[r.IntN(4)]))
			}
		}
		clear(steady)
		for _, s := range services {
			if slices.ContainsFunc(before, func(b *lb.Service) bool { return b.ID == s.ID }) {
				steady[lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr}] = true
			}
		}
		ipt.fail, ipvs.fail, k.fail = nil, nil, nil
		if r.IntN(5) == 0 {
			ipvs.fail = errors.New("no memory")
		}
		if r.IntN(10) == 0 {
			k.fail = errors.New("xtables lock held by another program")
		}
		err := a.Apply(t.Context(), Desired{Services: lists.Of(services)})
		if err != nil && ipvs.fail == nil && k.fail == nil {
			t.Fatal(err)
		}
		k.moved()
		k.calls = nil
		before = services
		if err != nil {
			continue // the engine has what it had; user space has the rest
		}
		for _, s := range services {
			f := lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr}
			steered, one, two := served(f)
			if path := s.Requests().DataPath; steered != (path == "" || path == "userspace") ||
				one != (path == "iptables") || two != (path == "ipvs") {
				t.Fatalf("%s requests %q: steered %v, iptables %v, ipvs %v", s.ID, path, steered, one, two)
			}
		}
		if n := len(ipt.has) + len(ipvs.has) + len(k.steered); n != len(services) {
			t.Fatalf("%d addresses served of %d Services", n, len(services))
		}
	}
}

// TestMoveClients: the new path of a Service with affinity knows where its
// clients were, if it can.
func TestMoveClients(t *testing.T) {
	a, _, ipt, ipvs := withEngines(t)
	core, log := observer.New(zap.WarnLevel)
	a.Log = zap.New(core)
	ipvs.forgets = errors.ErrUnsupported
	now := int64(0)
	a.Now = func() int64 { return now }
	s := service(lb.TCP, "web", 1, 1, 2)
	s.AffinityTimeout = 10
	apply := func(path string) {
		t.Helper()
		mustApply(t, a, requesting(s, path))
	}
	client := func(n byte, backend int, at int64) lb.Client {
		return lb.Client{Addr: netip.AddrFrom4([4]byte{192, 0, 2, n}), Backend: s.Backends[backend].Addr, LastUsed: at}
	}
	apply("userspace")
	a.LB.Memory().RememberClients(s.ID, []lb.Client{client(1, 0, 0), client(2, 1, 5), client(3, 0, 6)})
	now = 10 // the first has been away for too long
	apply("iptables")
	if want := []lb.Client{client(2, 1, 5), client(3, 0, 6)}; !slices.Equal(ipt.clients[s.ID], want) {
		t.Errorf("iptables knows %v, want %v", ipt.clients, want)
	}
	ipt.clients[s.ID] = []lb.Client{client(2, 0, 9)} // it has gone elsewhere meanwhile
	apply("userspace")
	if c := a.LB.Memory().ServiceClients(s.ID); !slices.Contains(c, client(2, 0, 9)) {
		t.Errorf("user space knows %v", c)
	}
	if log.Len() > 0 {
		t.Errorf("warned: %v", log.All())
	}
	apply("ipvs")
	if log.Len() != 1 {
		t.Errorf("%d warnings of clients who are forgotten, want one", log.Len())
	}
	ipvs.clients = map[lb.ID][]lb.Client{s.ID: {client(4, 1, 9)}}
	apply("iptables")
	if !slices.Contains(ipt.clients[s.ID], client(4, 1, 9)) {
		t.Errorf("from ipvs iptables gets %v", ipt.clients)
	}
}

// TestEngineFails: Services whose engine fails are served in user space until it works.
func TestEngineFails(t *testing.T) {
	a, k, ipt, _ := withEngines(t)
	a.Mode = IPTables
	var told []string
	a.Observe = func(at Attempt) {
		for _, f := range at.Fallbacks {
			told = append(told, fmt.Sprintf("%s %s %s %v", f.Service, f.Requested, f.Path, f.Reason == ""))
		}
	}
	services := []*lb.Service{service(lb.TCP, "web", 1, 1), requesting(service(lb.TCP, "own", 2, 1), "iptables")}
	ipt.fail = errors.New("xtables lock held by another program")
	if err := a.Apply(t.Context(), Desired{Services: lists.Of(services)}); !errors.Is(err, ipt.fail) {
		t.Errorf("Apply = %v", err)
	}
	if s := a.Status(); len(k.steered) != 2 || s.Paths[Userspace] != 2 || s.Fallbacks != 2 {
		t.Errorf("steered %v, status %+v", k.steered, s)
	}
	ipt.fail = nil
	if err := a.Apply(t.Context(), Desired{Services: lists.Of(services)}); err != nil || len(k.steered) != 0 || len(ipt.has) != 2 {
		t.Errorf("Apply = %v, steered %v, in iptables %v", err, k.steered, ipt.has)
	}
	if s := a.Status(); s.Paths[IPTables] != 2 || s.Fallbacks != 0 {
		t.Errorf("status %+v", s)
	}
	want := []string{"default/own iptables userspace false", "default/own iptables iptables true"}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	if ipt.intact = false; a.intact(t.Context()) {
		t.Error("the loss of an engine's rules was not noticed")
	}
}

// TestEngineRepairs: an engine whose rules are lost writes them again before others are asked for theirs, and all is
// written after that.
func TestEngineRepairs(t *testing.T) {
	a, k, ipt, ipvs := withEngines(t)
	mustApply(t, a, requesting(service(lb.TCP, "own", 2, 1), "iptables"), requesting(service(lb.TCP, "two", 3, 1), "ipvs"))
	k.calls, ipt.intact = nil, false
	ipvs.asked = func() { k.calls = append(k.calls, "ask ipvs") }
	if a.intact(t.Context()) || !slices.Equal(k.calls, []string{"iptables1", "ask ipvs"}) {
		t.Errorf("calls = %v", k.calls)
	}
	ipt.intact = true
	if err := a.Apply(t.Context(), a.want); err != nil || a.Status().Repairs != 1 {
		t.Errorf("%v, %d repairs", err, a.Status().Repairs)
	}
	for _, want := range []string{"iptables1", "ipvs1", "steer"} {
		if !slices.Contains(k.calls[2:], want) {
			t.Errorf("calls = %v, without %s", k.calls[2:], want)
		}
	}

	k.calls, ipt.intact, ipt.fail, ipvs.asked = nil, false, errors.New("no"), nil
	if a.intact(t.Context()) || len(k.calls) > 0 {
		t.Errorf("calls = %v", k.calls)
	}
	ipt.intact, ipt.fail = true, nil
	if err := a.Apply(t.Context(), a.want); err != nil || len(ipt.has) != 1 {
		t.Errorf("after a repair that failed: %v, %v", err, ipt.has)
	}
}

// TestEngineComesLater: Services whose engine comes later are served in user space until then, and move.
func TestEngineComesLater(t *testing.T) {
	a, k, ipt, _ := withEngines(t)
	f := &a.Families[0]
	f.Engines[IPTables], f.No[IPTables] = nil, errors.New("xtables lock held by another program")
	mustApply(t, a, requesting(service(lb.TCP, "own", 2, 1), "iptables"))
	if len(k.steered) != 1 || a.Status().Fallbacks != 1 {
		t.Errorf("steered %v, status %+v", k.steered, a.Status())
	}
	attempts := make(chan error, 100)
	a.Observe = func(at Attempt) { attempts <- at.Err }
	stop := running(t, a)
	free := *f
	free.Engines[IPTables], free.No[IPTables] = ipt, nil
	a.Offer(false, free)
	if err := <-attempts; err != nil {
		t.Error(err)
	}
	stop()
	if s := a.Status(); s.Paths[IPTables] != 1 || s.Fallbacks != 0 || len(ipt.has) != 1 || len(k.steered) != 0 {
		t.Errorf("steered %v, in iptables %v, status %+v", k.steered, ipt.has, s)
	}
}

// TestKernelNodePorts: node ports are held on every path, at the addresses where
// they are served, and cluster IPs go before them.
func TestKernelNodePorts(t *testing.T) {
	a, k, ipt, _ := withEngines(t)
	node := netip.MustParseAddr("192.0.2.10")
	a.LocalAddrs = func() ([]netip.Addr, error) { return []netip.Addr{node}, nil }
	a.NodePorts = func(local []netip.Addr) []netip.Addr { return local }
	s := requesting(service(lb.TCP, "web", 1, 1), "iptables")
	s.Addresses = append(s.Addresses, nodePort(30080))
	mustApply(t, a, s)
	f := lb.Frontend{Protocol: lb.TCP, Addr: netip.AddrPortFrom(node, 30080)}
	if !k.listens(f.Addr) || ipt.has[f] != s.ID || len(ipt.has) != 2 || len(k.entries) != 1 {
		t.Errorf("held %v, in iptables %v, steered %+v", k.open, ipt.has, k.entries)
	}
	exact := service(lb.TCP, "exact", 9, 1)
	exact.Addresses = append(exact.Addresses, lb.Address{Kind: lb.ExternalIP, Addr: f.Addr})
	mustApply(t, a, s, exact)
	if !k.listens(f.Addr) || ipt.has[f] != s.ID {
		t.Errorf("an external IP takes the node port of another Service: held %v, in iptables %v", k.open, ipt.has)
	}
	exact = service(lb.TCP, "exact", 9, 1)
	exact.Addresses = append(exact.Addresses, lb.Address{Addr: f.Addr})
	mustApply(t, a, s, exact)
	if _, there := ipt.has[f]; there || k.listens(f.Addr) {
		t.Errorf("a node port is served at another Service's address: held %v, in iptables %v", k.open, ipt.has)
	}
}

// TestAddressPassesOn: an engine never has an address of two Services, also where the one that gives it up is on its
// way to another path.
func TestAddressPassesOn(t *testing.T) {
	a, _, ipt, _ := withEngines(t)
	one, two := service(lb.TCP, "a", 1, 1), service(lb.TCP, "b", 2, 2)
	extra := service(lb.TCP, "x", 9, 1).Addresses[0]
	extra.Kind = lb.ExternalIP
	had, gets := *one, *two
	had.Addresses = append(slices.Clip(had.Addresses), extra)
	gets.Addresses = append(slices.Clip(gets.Addresses), extra)
	mustApply(t, a, requesting(&had, "iptables"), requesting(two, "iptables"))
	mustApply(t, a, requesting(one, "userspace"), requesting(&gets, "iptables"))
	if owner := ipt.has[lb.Frontend{Protocol: lb.TCP, Addr: extra.Addr}]; owner != two.ID {
		t.Errorf("%s is of %v", extra.Addr, owner)
	}
}

// TestEjectedInKernel: endpoints that are ejected take no new connections on the kernel's paths either, until they
// return.
func TestEjectedInKernel(t *testing.T) {
	a, _, ipt, _ := withEngines(t)
	a.LB.Outlier = lb.DefaultOutlier
	a.LB.OnEjection = func(e lb.Ejection) { a.Ejected(e.Service) }
	web := service(lb.TCP, "web", 1, 1, 2, 3)
	mustApply(t, a, web)
	for range 15 {
		c, err := a.LB.Pick(balancer.Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: web.Addresses[0].Addr}})
		if err != nil {
			t.Fatal(err)
		}
		if c.Backend() == web.Backends[0].Addr {
			c.Failed(errors.New("refused"), 0)
			continue
		}
		c.Answered()
		c.Done(nil)
	}
	mustApply(t, a, requesting(web, "iptables"))
	if has := ipt.services[web.ID]; len(has.Eligible()) != 2 {
		t.Errorf("the kernel sends to %+v", has.Eligible())
	}
	applied := make(chan error, 10)
	a.Observe = func(at Attempt) { applied <- at.Err }
	due, _ := a.LB.Health().Trials(1e9, 1)
	due[0].Passed(1e9) // before Run hears of the ejection, which it would apply first
	stop := running(t, a)
	if err := <-applied; err != nil {
		t.Error(err)
	}
	stop()
	if has := ipt.services[web.ID]; len(has.Eligible()) != 3 {
		t.Errorf("after it has returned the kernel sends to %+v", has.Eligible())
	}
}
