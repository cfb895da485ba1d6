package balancer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// both returns a service at everyAddress with one backend that is local, 1, and one
// that is not, 2.
func both() lb.Service {
	s := echo(1, 2)
	s.Addresses = everyAddress
	s.Backends[0].Local = true
	return s
}

func at(address, client string) Flow {
	f := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort(address)}}
	if client != "" {
		f.Client = netip.MustParseAddr(client)
	}
	return f
}

// Policy Local of external addresses is not for clients on this node.
func TestWhoIsOnThisNode(t *testing.T) {
	for _, test := range []struct {
		asked, client string
		inside        bool
	}{
		{"10.0.0.5:80", "10.1.7.0", true},        // a pod
		{"10.0.0.5:80", "10.1.7.255", true},      // another
		{"10.0.0.5:80", "::ffff:10.1.7.5", true}, // one that asks on a socket for both families
		{"10.0.0.5:80", "10.1.8.0", false},       // a pod of another node
		{"10.0.0.5:80", "198.51.100.7", true},    // the node
		{"10.0.0.5:80", "::ffff:198.51.100.7", true},
		{"10.0.0.5:80", "198.51.100.8", false}, // another node
		{"10.0.0.5:80", "127.0.0.1", true},
		{"10.0.0.5:80", "127.9.9.9", true},
		{"10.0.0.5:80", "10.0.0.5", true},  // the node, if it has the address it asks for
		{"10.0.0.5:80", "10.0.0.4", false}, // but not for any other one
		{"[::ffff:10.0.0.5]:80", "10.0.0.5", true},
		{"198.51.100.7:30080", "198.51.100.7", true},
		{"198.51.100.9:30080", "198.51.100.9", true},
		{"127.0.0.1:30080", "127.0.0.1", true},
		{"198.51.100.7:30080", "203.0.113.9", false},
		{"10.0.0.5:80", "", false}, // not known
	} {
		b := balancing(t, both())
		if got := reaches(t, b, at(test.asked, test.client)); got != test.inside {
			t.Errorf("%s from %q: gets remote backends %t, want %t", test.asked, test.client, got, test.inside)
		}
	}
}

func TestWhoIsOnThisNodeIPv6(t *testing.T) {
	s := lb.Service{ID: lb.ID{Name: "six", Protocol: lb.TCP, IPv6: true}, Addresses: []lb.Address{
		{Addr: netip.MustParseAddrPort("[::]:30080"), Kind: lb.NodePort, Local: true},
	}, Backends: []lb.Backend{
		{Addr: netip.MustParseAddrPort("[fd00::1]:80"), Ready: true, Local: true},
		{Addr: netip.MustParseAddrPort("[fd00::2]:80"), Ready: true},
	}}
	table, err := lb.NewTable(refs([]lb.Service{s}), lb.Node{
		PodCIDRs:  append(prefixes("fd00:7::/64", "::ffff:10.1.7.0/120"), netip.Prefix{}),
		Addresses: []netip.Addr{netip.MustParseAddr("fe80::7%eth0"), netip.MustParseAddr("::ffff:198.51.100.7"), {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var b Balancer
	b.Update(table)
	for client, want := range map[string]bool{
		"::1": true, "fd00:7::5": true, "fe80::7": true, "fe80::7%eth1": true, "198.51.100.7": true, "10.1.7.1": true,
		"fd00:8::5": false, "fe80::8%eth0": false, "198.51.100.8": false, "10.1.8.1": false, "": false,
	} {
		if got := reaches(t, &b, at("[2001:db8::7]:30080", client)); got != want {
			t.Errorf("from %q: gets remote backends %t, want %t", client, got, want)
		}
	}
}

// reaches reports whether f gets two backends rather than one.
func reaches(t *testing.T, b *Balancer, f Flow) bool {
	t.Helper()
	first, second := mustPick(t, b, f), mustPick(t, b, f)
	return first != second
}

func TestSources(t *testing.T) {
	for _, test := range []struct {
		name    string
		sources []netip.Prefix
		allowed []string
		not     []string
	}{
		{"none", nil, []string{"192.0.2.1", "127.0.0.1", ""}, nil},
		{"some", prefixes("192.0.2.0/25", "203.0.113.9/32"),
			[]string{"192.0.2.0", "192.0.2.127", "203.0.113.9", "::ffff:203.0.113.9"},
			[]string{"192.0.2.128", "203.0.113.8", "127.0.0.1", "10.1.7.5", "198.51.100.7", "10.0.0.5", "2001:db8::1", ""}},
		{"not masked", prefixes("192.0.2.77/24"), []string{"192.0.2.1"}, []string{"192.0.3.77"}},
		{"everybody", prefixes("192.0.2.0/24", "0.0.0.0/0"), []string{"203.0.113.9", "127.0.0.1", ""}, nil},
		{"everybody of the other family", prefixes("192.0.2.0/24", "::/0"), []string{"192.0.2.1"}, []string{"203.0.113.9"}},
		{"both families", prefixes("192.0.2.0/24", "2001:db8::/32"), []string{"192.0.2.1"}, []string{"203.0.113.9", "2001:db8::1"}},
		{"the other family only", prefixes("2001:db8::/32"), []string{"203.0.113.9"}, nil},
		{"mapped", prefixes("::ffff:192.0.2.0/120"), []string{"192.0.2.1"}, []string{"203.0.113.9"}},
		{"mapped everybody", prefixes("::ffff:0.0.0.0/96"), []string{"203.0.113.9"}, nil},
		{"invalid", []netip.Prefix{{}}, nil, []string{"203.0.113.9", "127.0.0.1", ""}},
		{"one invalid", append(prefixes("192.0.2.0/24"), netip.Prefix{}), []string{"192.0.2.1"}, []string{"203.0.113.9", ""}},
		// The node may speak from the address it asks for.
		{"this node", prefixes("198.51.100.0/24"), []string{"198.51.100.7", "198.51.100.8", "10.0.0.5"}, []string{"10.0.0.4", "127.0.0.1", "10.1.7.5"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := both()
			s.Addresses = []lb.Address{{Addr: front}, {Addr: everyAddress[4].Addr, Kind: lb.LoadBalancerIP, Sources: test.sources}}
			b := balancing(t, s)
			a := b.Table().Services()[0].Addresses[1]
			if restricted := len(a.Sources) > 0; restricted != (len(test.not) > 0) {
				t.Errorf("sources %v", a.Sources)
			}
			for _, client := range test.allowed {
				mustPick(t, b, at("10.0.0.5:80", client)).Done(nil)
			}
			for _, client := range test.not {
				if c, err := b.Pick(at("10.0.0.5:80", client)); !errors.Is(err, ErrNotAllowed) || c.Valid() {
					t.Errorf("from %q: got %v, want ErrNotAllowed", client, err)
				}
				mustPick(t, b, at("10.0.0.1:80", client)).Done(nil) // other addresses are open
			}
			if s := b.Counters().All()[0]; s.NotAllowed != uint64(len(test.not)) || s.Picks != uint64(len(test.allowed)+len(test.not)) {
				t.Errorf("counted %d not allowed and %d picks", s.NotAllowed, s.Picks)
			}
		})
	}
}

func TestSourcesIPv6(t *testing.T) {
	six := netip.MustParseAddrPort("[2001:db8::80]:80")
	for _, test := range []struct {
		sources []netip.Prefix
		allowed bool
	}{
		{prefixes("2001:db8::/32"), true},
		{prefixes("2001:db9::/32"), false},
		{prefixes("192.0.2.0/24"), true},
		{prefixes("192.0.2.0/24", "2001:db9::/32"), false},
		{prefixes("0.0.0.0/0", "2001:db9::/32"), false},
		{prefixes("::/0"), true},
		{[]netip.Prefix{{}}, false},
	} {
		s := lb.Service{ID: lb.ID{Name: "six", Protocol: lb.TCP, IPv6: true},
			Addresses: []lb.Address{{Addr: six, Kind: lb.LoadBalancerIP, Sources: test.sources}},
			Backends:  []lb.Backend{{Addr: netip.MustParseAddrPort("[fd00::1]:80"), Ready: true}}}
		b := balancing(t, s)
		if _, err := b.Pick(at("[2001:db8::80]:80", "2001:db8::1%eth0")); (err == nil) != test.allowed {
			t.Errorf("%v: got %v, want allowed %t", test.sources, err, test.allowed)
		}
	}
}

// Who is not allowed learns nothing about the backends.
func TestSourcesComeBeforeBackends(t *testing.T) {
	s := echo()
	s.Addresses = []lb.Address{{Addr: front, Kind: lb.LoadBalancerIP, Local: true, Sources: prefixes("192.0.2.0/24")}}
	b := balancing(t, s)
	if _, err := b.Pick(at("10.0.0.1:80", "203.0.113.9")); !errors.Is(err, ErrNotAllowed) {
		t.Errorf("got %v, want ErrNotAllowed", err)
	}
	if _, err := b.Pick(at("10.0.0.1:80", "192.0.2.1")); !errors.Is(err, ErrNoBackend) {
		t.Errorf("got %v, want ErrNoBackend", err)
	}
}

// The sets take turns apart from each other, so that both are exact.
func TestSetsTakeTurnsApart(t *testing.T) {
	var b Balancer
	s := both()
	s.Backends = append(s.Backends, echo(3, 4, 5).Backends...)
	s.Backends[3].Local = true // and 1
	b.Update(mustTable(t, []lb.Service{s}))
	count := map[string]map[netip.AddrPort]int{"10.0.0.1:80": {}, "10.0.0.2:80": {}, "10.0.0.4:80": {}}
	for range 5 {
		for asked, n := range map[string]int{"10.0.0.1:80": 1, "10.0.0.2:80": 2} {
			for range n {
				count[asked][mustPick(t, &b, at(asked, "203.0.113.9")).Backend()]++
			}
		}
	}
	for asked, want := range map[string]map[int]int{
		"10.0.0.1:80": {1: 1, 2: 1, 3: 1, 4: 1, 5: 1},
		"10.0.0.2:80": {1: 5, 4: 5},
	} {
		for i, n := range want {
			if got := count[asked][address(i)]; got != n {
				t.Errorf("%s: backend %d was picked %d times, want %d", asked, i, got, n)
			}
		}
	}
}

// There is one memory for all addresses of a service port.
func TestAffinityIsSharedBetweenSets(t *testing.T) {
	b := balancing(t, sticky(both(), second))
	cluster, local := at("10.0.0.1:80", "203.0.113.9"), at("10.0.0.4:80", "203.0.113.9")
	pick := func(f Flow, now int64) netip.AddrPort {
		f.Now = now
		return mustPick(t, b, f).Backend()
	}
	for i := range int64(4) { // whichever comes first in turn
		f := cluster
		f.Client = netip.AddrFrom4([4]byte{203, 0, 113, byte(100 + i)})
		remembered := pick(f, 0)
		f.Frontend = local.Frontend
		if got := pick(f, 1); got != address(1) {
			t.Errorf("sent to %s, which is not local", got)
		}
		f.Frontend = cluster.Frontend
		if got := pick(f, 2); got != address(1) {
			t.Errorf("sent to %s after %s and a local one; want to stay at the latter", got, remembered)
		}
	}
	if n := b.Counters().All()[0].AffinityEntries; n != 4 {
		t.Errorf("%d clients remembered, want 4", n)
	}

	// The local one terminates, so that it leaves the cluster set, but not the other.
	s := sticky(both(), second)
	s.Backends[0].Ready, s.Backends[0].Terminating = false, true
	b.Update(mustTable(t, []lb.Service{s}))
	if n := b.Counters().All()[0].AffinityEntries; n != 4 {
		t.Errorf("%d clients remembered, want 4: it still takes connections", n)
	}
	if pick(local, 3) != address(1) || pick(cluster, 4) != address(2) || pick(local, 5) != address(1) {
		t.Error("a remembered backend was used where it is not eligible, or not where it is")
	}

	// Another local one comes, so that it leaves that set too, though it still lives.
	s.Backends = append(s.Backends, lb.Backend{Addr: address(3), Ready: true, Serving: true, Local: true})
	b.Update(mustTable(t, []lb.Service{s}))
	if n := b.Counters().All()[0].AffinityEntries; n != 0 {
		t.Errorf("%d clients remember a backend that takes no connections", n)
	}
}

// Adding an address, or changing its rules, disturbs nothing of the service.
func TestAddressChangeDisturbsNothing(t *testing.T) {
	const n = 5
	var b, undisturbed Balancer
	s := sticky(echo(numbers(n)...), second)
	for i := range s.Backends {
		s.Backends[i].Local = i%2 == 0
	}
	s.Addresses = everyAddress[:2]
	for _, b := range []*Balancer{&b, &undisturbed} {
		b.Update(mustTable(t, []lb.Service{s}))
	}
	sticking := mustPick(t, &b, Flow{Client: client})
	mustPick(t, &undisturbed, Flow{Client: client})
	for i := range len(everyAddress) {
		changed := s
		changed.Addresses = slices.Clone(everyAddress)
		changed.Addresses[2].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80)
		changed.Addresses[i].Sources = prefixes("203.0.113.0/24", "192.0.2.0/24")
		b.Update(mustTable(t, []lb.Service{changed}))
		for _, asked := range []string{"10.0.0.1:80", "10.0.0.2:80"} {
			unknown := Flow{Frontend: at(asked, "").Frontend, Client: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}
			got, want := mustPick(t, &b, unknown).Backend(), mustPick(t, &undisturbed, unknown).Backend()
			if got != want {
				t.Errorf("change %d: %s went to %s, want %s", i, asked, got, want)
			}
		}
		if c := mustPick(t, &b, Flow{Client: client}); c != sticking || !c.Live() {
			t.Errorf("change %d: client moved from %s to %s", i, sticking.Backend(), c.Backend())
		}
	}
	if s := b.Counters().All()[0]; s.InFlight != uint64(1+3*len(everyAddress)) {
		t.Errorf("in flight: %d", s.InFlight)
	}
}

// However tables change, each address gives exactly what a model says.
func TestRandomTablesAgainstModel(t *testing.T) {
	testbed.Sequential(t)
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	chance := func(percent int) bool { return rng.IntN(100) < percent }
	clients := []netip.Addr{{}, podHere, remote, client, here.Addresses[0], everyAddress[4].Addr.Addr()}
	var b Balancer
	for round := range 1500 {
		s := echo(rng.Perm(12)[:rng.IntN(7)]...)
		s.Addresses = nil
		hinted := chance(50)
		s.Policies = &lb.Policies{Scheduler: []string{"", "lc"}[rng.IntN(2)]} // with all connections done both take turns
		for i := range s.Backends {
			k := &s.Backends[i]
			k.Ready, k.Serving, k.Terminating, k.Local = chance(50), chance(70), chance(50), chance(40)
			k.Maintenance = chance(15)
			if hinted {
				k.NodeHint, k.ZoneHint = lb.Hint(rng.IntN(3)), lb.Hint(rng.IntN(3))
			}
		}
		for _, a := range everyAddress {
			if chance(80) {
				a.Local = chance(60)
				if chance(20) {
					a.Sources = prefixes("198.51.100.0/24", "203.0.113.0/28")
				}
				s.Addresses = append(s.Addresses, a)
			}
		}
		b.Update(mustTable(t, []lb.Service{s}))
		for _, a := range s.Addresses {
			for _, client := range clients {
				f := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: a.Addr}, Client: client}
				want, wantErr := model(&s, a, client)
				if err := agrees(&b, f, want, wantErr); err != nil {
					t.Fatalf("rng seed %d, round %d: %s from %s: %v\n%+v\n%s", seed, round, a.Addr, client, err, s, b.Explain(f))
				}
			}
		}
	}
}

// model says who serves a client at a, in the most literal way.
func model(s *lb.Service, a lb.Address, client netip.Addr) ([]lb.Backend, error) {
	onNode := client == podHere || client == here.Addresses[0] || client.IsValid() && client == a.Addr.Addr()
	if a.Sources != nil && client != remote && client != here.Addresses[0] && (!client.IsValid() || client != a.Addr.Addr()) {
		return nil, ErrNotAllowed
	}
	select_ := func(accept func(b lb.Backend) bool) (chosen []lb.Backend) {
		for _, b := range s.Backends {
			if accept(b) {
				chosen = append(chosen, b)
			}
		}
		return chosen
	}
	ready := func(b lb.Backend) bool { return b.Ready && !b.Maintenance }
	terminating := func(b lb.Backend) bool { return b.Serving && b.Terminating && !b.Maintenance }
	all := select_(ready)
	if len(all) == 0 {
		all = select_(terminating)
	} else {
		for _, hint := range []func(lb.Backend) lb.Hint{
			func(b lb.Backend) lb.Hint { return b.ZoneHint },
			func(b lb.Backend) lb.Hint { return b.NodeHint },
		} {
			missing := slices.ContainsFunc(select_(ready), func(b lb.Backend) bool { return hint(b) == lb.NoHint })
			hinted := select_(func(b lb.Backend) bool { return ready(b) && hint(b) == lb.HintHere })
			if !missing && len(hinted) > 0 {
				all = hinted
			}
		}
	}
	local := select_(func(b lb.Backend) bool { return b.Local && ready(b) })
	if len(local) == 0 {
		local = select_(func(b lb.Backend) bool { return b.Local && terminating(b) })
	}
	switch {
	case len(all) == 0:
		return nil, ErrNoBackend
	case !a.Local || a.Kind != lb.ClusterIP && onNode:
		return all, nil
	case len(local) == 0:
		return nil, ErrNoLocalBackend
	}
	return local, nil
}

// agrees returns in what the next round of f differs from what is wanted, or from
// what Explain says.
func agrees(b *Balancer, f Flow, want []lb.Backend, wantErr error) error {
	explained := b.Explain(f)
	seen := map[netip.AddrPort]bool{}
	for i := range max(len(want), 1) {
		c, err := b.Pick(f)
		if !errors.Is(err, wantErr) {
			return fmt.Errorf("got %v, want %v", err, wantErr)
		}
		if i == 0 && !strings.Contains(explained, "\n"+outcome(c, err)) {
			return fmt.Errorf("%s is not what Explain says", outcome(c, err))
		}
		c.Done(nil)
		seen[c.Backend()] = true
	}
	for _, k := range want {
		if !seen[k.Addr] {
			return fmt.Errorf("no turn for %s in %v", k.Addr, seen)
		}
	}
	return nil
}

// outcome returns how Explain begins the line that foretells this Pick.
func outcome(c Choice, err error) string {
	switch {
	case errors.Is(err, ErrNotAllowed):
		return "dropped: not allowed"
	case errors.Is(err, ErrNoLocalBackend):
		return "dropped: no endpoint of this node"
	case errors.Is(err, ErrNoBackend):
		return "refused: no endpoint"
	}
	return "goes to " + c.Backend().String() + ":"
}
