package lb

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// ownersAreRight compares who owns what in a table with what the rule says, for each frontend by itself.
func ownersAreRight(t *testing.T, before, table *Table, services []*Service, frontends []Frontend) {
	t.Helper()
	for _, f := range frontends {
		want := ruleOwner(before, table, services, f)
		var got *ID
		if at, ok := table.index.holder(&f); ok {
			got = &table.at(at.Slot).ID
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%s belongs to %v, want %v", f, got, want)
		}
	}
}

// ruleOwner returns who is to own f.
func ruleOwner(before, table *Table, services []*Service, f Frontend) *ID {
	type claimant struct {
		id          ID
		kind        Kind
		created, at int64
	}
	var had *ID
	if at, ok := before.index.holder(&f); ok {
		had = &before.at(at.Slot).ID
	}
	port, node := f.everywhere(), f.Addr.Addr().IsUnspecified()
	var all []claimant
	for i, s := range services {
		if slices.ContainsFunc(services[:i], func(o *Service) bool { return o.ID == s.ID }) {
			continue
		}
		at := slices.IndexFunc(s.Addresses, func(a Address) bool { return a.Addr == f.Addr })
		check := node && f.Protocol == TCP && s.CheckPort == f.Addr.Port() && !s.IPv6
		switch {
		case s.Protocol == f.Protocol && at >= 0:
			kind := s.Addresses[at].Kind
			if !node && kind != ClusterIP && kind != NodePort && table.node.serves(f.Addr.Addr()) {
				if first := ruleOwner(before, table, services, port); first != nil && first.Service() != s.Service() {
					continue
				}
			}
			all = append(all, claimant{s.ID, kind, s.Created, int64(i)})
		case check:
			all = append(all, claimant{s.ID, NodePort, s.Created, int64(i)})
		}
	}
	if len(all) == 0 {
		return nil
	}
	first := slices.MinFunc(all, func(a, b claimant) int {
		aHad, bHad := had != nil && a.id == *had, had != nil && b.id == *had
		order := []Kind{ClusterIP, NodePort, LoadBalancerIP, ExternalIP}
		switch c := slices.Index(order, a.kind) - slices.Index(order, b.kind); {
		case c != 0:
			return c
		case aHad:
			return -1
		case bHad:
			return 1
		}
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.at, b.at))
	})
	return &first.id
}

// claims returns a service with one address.
func claims(name string, p Protocol, kind Kind, addr string, created int64) *Service {
	a := netip.MustParseAddrPort(addr)
	return &Service{ID: ID{Namespace: name, Name: name, Protocol: p, IPv6: a.Addr().Is6()}, Created: created,
		Addresses: []Address{{Addr: a, Kind: kind}}}
}

// TestWhoOwnsAnAddress: in whichever order services come, and however they are named, the same one owns an address.
func TestWhoOwnsAnAddress(t *testing.T) {
	const ip, node, port = "10.96.0.10:80", "192.0.2.10:30080", "0.0.0.0:30080"
	check := claims("", TCP, LoadBalancerIP, "203.0.113.1:80", 9)
	check.CheckPort = 30080
	for name, c := range map[string]struct {
		ask      string
		services []*Service // the first one owns what is asked
		others   string     // what the others are told of the owner; empty: nothing
	}{
		"kind": {ip, []*Service{claims("", TCP, ClusterIP, ip, 9), claims("", TCP, LoadBalancerIP, ip, 2),
			claims("", TCP, ExternalIP, ip, 1)}, "cluster IP"},
		"kind of UDP": {ip, []*Service{claims("", UDP, LoadBalancerIP, ip, 9), claims("", UDP, ExternalIP, ip, 1)},
			"load-balancer IP"},
		"kind of SCTP and IPv6": {"[fd00::1]:80", []*Service{claims("", SCTP, ClusterIP, "[fd00::1]:80", 9),
			claims("", SCTP, ExternalIP, "[fd00::1]:80", 1)}, "cluster IP"},
		"age": {ip, []*Service{claims("", TCP, ExternalIP, ip, 1), claims("", TCP, ExternalIP, ip, 2),
			claims("", TCP, ExternalIP, ip, 3)}, "external IP"},
		"node port": {node, []*Service{claims("", TCP, NodePort, port, 9), claims("", TCP, ExternalIP, node, 1),
			claims("", TCP, LoadBalancerIP, node, 2)}, "node port"},
		"node port of another protocol": {node, []*Service{claims("", TCP, ExternalIP, node, 9),
			claims("", UDP, NodePort, port, 1)}, ""},
		"port of health checks": {port, []*Service{check, claims("", TCP, ExternalIP, node, 1)}, "node port"},
	} {
		t.Run(name, func(t *testing.T) {
			for order := range permutations(len(c.services)) {
				names := []string{"a", "m", "z"}
				services := make([]*Service, len(order))
				for i, at := range order {
					s := *c.services[at]
					s.Namespace, s.Name = names[i], names[i]
					services[i] = &s
				}
				winner := services[slices.Index(order, 0)]
				whole, d, _ := new(Table).Next(services, loopNode)
				losersAre(t, d, services, winner, c.others)
				table := new(Table)
				for n := range services { // one after the other: kinds decide, or else the first has it
					table, _, _ = table.Next(services[:n+1], loopNode)
				}
				f := Frontend{winner.Protocol, netip.MustParseAddrPort(c.ask)}
				owns := func(t *testing.T, table *Table, want ID) {
					t.Helper()
					at, ok := table.index.holder(&f)
					if !ok {
						port := f.everywhere()
						at, _ = table.index.holder(&port)
					}
					if got := table.at(at.Slot).ID; got != want {
						t.Errorf("in the order %v %s belongs to %s, want %s", order, c.ask, got, want)
					}
				}
				owns(t, whole, winner.ID)
				if name != "age" {
					owns(t, table, winner.ID)
				} else {
					owns(t, table, services[0].ID)
					again, _, _ := table.Anew(services, loopNode)
					owns(t, again, services[0].ID)
				}
			}
		})
	}
}

// TestElsewhere: no service gets an address of another node.
func TestElsewhere(t *testing.T) {
	s := claims("a", TCP, ClusterIP, "10.96.0.10:80", 1)
	s.Addresses = append(s.Addresses, Address{Addr: netip.MustParseAddrPort("192.0.2.11:80"), Kind: ExternalIP})
	node := loopNode
	for _, elsewhere := range []bool{false, true, false} {
		if node.Elsewhere = nil; elsewhere {
			node.Elsewhere = []netip.Addr{s.Addresses[1].Addr.Addr()}
		}
		table, _, err := new(Table).Next([]*Service{s}, node)
		if has := len(table.At(0).Addresses) == 2; has == elsewhere || (err != nil) != elsewhere {
			t.Errorf("elsewhere %v: %v, %v", elsewhere, table.At(0).Addresses, err)
		}
	}
}

// TestOwn: no service gets an address of the node where this program itself answers; another protocol, port or address
// is as any other.
func TestOwn(t *testing.T) {
	here := loopNode.Addresses[0]
	s := claims("a", TCP, ClusterIP, "10.96.0.10:10256", 1)
	s.Addresses = append(s.Addresses, Address{Addr: netip.AddrPortFrom(here, 10256), Kind: ExternalIP},
		Address{Addr: netip.MustParseAddrPort("0.0.0.0:10256"), Kind: NodePort})
	for own, want := range map[netip.AddrPort]int{
		netip.MustParseAddrPort("0.0.0.0:10256"): 1, netip.AddrPortFrom(here, 10256): 2,
		netip.MustParseAddrPort("0.0.0.0:10249"): 3, netip.MustParseAddrPort("127.0.0.1:10256"): 3,
	} {
		node := loopNode
		node.Own = []netip.AddrPort{own}
		table, err := NewTable([]*Service{s}, node)
		if got := table.At(0).Addresses; len(got) != want || (err != nil) != (want < 3) {
			t.Errorf("%v: %v, %v", own, got, err)
		}
	}
	u := claims("a", UDP, ClusterIP, "10.96.0.10:10256", 1)
	u.Addresses = s.Addresses
	node := loopNode
	node.Own = []netip.AddrPort{netip.AddrPortFrom(here, 10256)}
	if table, err := NewTable([]*Service{u}, node); err != nil || len(table.At(0).Addresses) != 3 {
		t.Errorf("UDP: %v, %v", table.At(0).Addresses, err)
	}
}

// losersAre wants all services but the winner to be told that it owns what they list.
func losersAre(t *testing.T, d Delta, services []*Service, winner *Service, as string) {
	t.Helper()
	if as == "" {
		if len(d.Losers) > 0 {
			t.Errorf("losers %v, want none", d.Losers)
		}
		return
	}
	if len(d.Losers) != len(services)-1 {
		t.Errorf("losers %v, want all but %s", d.Losers, winner.ID)
	}
	for _, l := range d.Losers {
		if l.Service == winner.ID || len(l.Taken) != 1 || l.Taken[0].Owner != winner.ID || l.Taken[0].As.String() != as {
			t.Errorf("%s is told %v, want %s with %s", l.Service, l.Taken, winner.ID, as)
		}
	}
}

// permutations yields all orders of the numbers below n.
func permutations(n int) func(func([]int) bool) {
	var each func(order []int, yield func([]int) bool) bool
	each = func(order []int, yield func([]int) bool) bool {
		if len(order) == n {
			return yield(order)
		}
		for i := range n {
			if !slices.Contains(order, i) && !each(append(slices.Clone(order), i), yield) {
				return false
			}
		}
		return true
	}
	return func(yield func([]int) bool) { each(nil, yield) }
}

// TestManyListOneAddress: thousands of services that list one address cost as many steps, not their square.
func TestManyListOneAddress(t *testing.T) {
	const n = 3000
	services := []*Service{claims("owner", TCP, ClusterIP, "10.96.0.10:80", 1)}
	for i := range n {
		services = append(services, claims(fmt.Sprint("s", i), TCP, ExternalIP, "10.96.0.10:80", int64(n-i)))
	}
	table, _, _ := new(Table).Next(services, loopNode)
	table, d, _ := table.Next(services[1:], loopNode)
	if owner := table.Owner(Frontend{TCP, services[0].Addresses[0].Addr}); owner == nil || owner.Name != services[n].Name {
		t.Errorf("the address belongs to %v, want the oldest", owner)
	}
	if len(d.Losers) != n {
		t.Errorf("%d services are told of the new owner, want %d", len(d.Losers), n)
	}
	_, d, _ = table.Next(slices.Insert(services[1:], n, services[0]), loopNode)
	if len(d.Losers) != n {
		t.Errorf("%d services are told of the old owner, want %d", len(d.Losers), n)
	}
}
