package redirect

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// tracked returns the original destinations of all conntrack entries of TCP and UDP, with
// their protocol number. Hosts have others of their own, of IGMP.
func tracked(t *testing.T, ipv6 bool) []string {
	t.Helper()
	family := netlink.InetFamily(unix.AF_INET)
	if ipv6 {
		family = unix.AF_INET6
	}
	list, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
	check(t, err)
	var out []string
	for _, f := range list {
		if p := f.Forward.Protocol; p != unix.IPPROTO_TCP && p != unix.IPPROTO_UDP {
			continue
		}
		dst, _ := netip.AddrFromSlice(f.Forward.DstIP)
		out = append(out, fmt.Sprintf("%d %s", f.Forward.Protocol, netip.AddrPortFrom(dst, f.Forward.DstPort)))
	}
	slices.Sort(out)
	return out
}

// reconciled steers, and deletes the flows that a plan makes stale, as the program does.
type reconciled struct {
	steers
	stale flows.Stale
	was   map[lb.Frontend]flows.Place // nil: it is not known
}

func (r *reconciled) sync(t *testing.T, p Plan) {
	t.Helper()
	syncPlan(t, r.steers, p)
	now := make(map[lb.Frontend]flows.Place)
	for _, e := range p.Update().Add {
		kinds := map[Action]flows.Kind{Redirect: flows.Proxy, Accept: flows.Socket, Refuse: flows.Refused,
			Drop: flows.Refused}
		if e.Frontend.Protocol == lb.UDP {
			now[e.Frontend] = flows.Place{Kind: kinds[e.Action], Port: e.Port, Sources: e.Sources,
				OnlyInside: e.DropOutside}
		}
	}
	for _, all := range []map[lb.Frontend]flows.Place{r.was, now} {
		for f := range all {
			r.stale.Change(f, r.was[f], now[f], r.was == nil)
		}
	}
	local, err := netfilter.LocalAddrs()
	check(t, err)
	r.stale.Reconcile(&flows.Node{Local: local, Inside: p.Inside}, func(f lb.Frontend) bool {
		_, there := now[f]
		return there
	})
	r.was = now
}

func (r *reconciled) deleted() uint64 { return r.stale.Deleted(false) + r.stale.Deleted(true) }

func flow(addr netip.AddrPort) string { return fmt.Sprintf("%d %s", unix.IPPROTO_UDP, addr) }

// served is what becomes of those who ask one UDP frontend.
type served struct {
	port    uint16 // steered to it
	accept  bool   // listened on
	refuse  bool
	drop    bool
	outside bool
	only    []netip.Prefix // restricted to them if not nil
}

// plan returns a plan for one frontend beside others.
func (x served) plan(f lb.Frontend, rest Plan, inside netip.Prefix) Plan {
	p := rest
	p.Inside = []netip.Prefix{inside}
	if x.port != 0 {
		p.Ported = append(slices.Clone(p.Ported), Ported{f, x.port})
	}
	add := func(list []lb.Frontend, yes bool) []lb.Frontend {
		if yes {
			list = append(slices.Clone(list), f)
		}
		return list
	}
	p.Accept, p.Refuse, p.Drop, p.DropOutside = add(p.Accept, x.accept), add(p.Refuse, x.refuse), add(p.Drop, x.drop),
		add(p.DropOutside, x.outside)
	if x.only != nil {
		p.Restricted = append(slices.Clone(p.Restricted), Restricted{f, x.only})
	}
	return p
}

// TestStaleFlows has one client port ask a frontend before and after each change
// that there is, beside flows of other frontends, and counts the entries that
// the change deletes.
func TestStaleFlows(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		a, b := serveUDP(t, ":0"), serveUDP(t, ":0")
		serveUDP(t, ":30053")
		st := staleTest{lab: l, s: &reconciled{steers: v.steerer()}}
		st.rest = st.others(t, v.ipv6, a)
		pods, hosts := podNet(v.ipv6), alone(clientAddr[v.ipv6])
		here, gone, refused, dropped := served{port: a}, served{}, served{refuse: true}, served{drop: true}
		bound := served{accept: true}
		for _, c := range []struct {
			name     string
			from, to served
			nodePort bool
			pod      bool // it is a pod that asks
			stale    bool
		}{
			{"begins", gone, here, false, false, true},
			{"is refused from the start", gone, refused, false, false, true},
			{"is dropped from the start", gone, dropped, false, false, true},
			{"stays", here, here, false, false, false},
			{"moves", here, served{port: b}, false, false, true},
			{"is refused", here, refused, false, false, true},
			{"is dropped", here, dropped, false, false, true},
			{"ceases", here, gone, false, false, true},
			{"comes back from refusal", refused, here, false, false, false},
			{"comes back from being dropped", dropped, here, false, false, false},
			{"is for inside, host", here, served{port: a, outside: true}, false, false, true},
			{"is for inside, pod", here, served{port: a, outside: true}, false, true, false},
			{"is for all, pod", served{port: a, outside: true}, here, false, true, false},
			{"is for inside and moves, pod", here, served{port: b, outside: true}, false, true, true},
			{"is for pods, host", here, served{port: a, only: []netip.Prefix{pods}}, false, false, true},
			{"is for pods, pod", here, served{port: a, only: []netip.Prefix{pods}}, false, true, false},
			{"is for pods no more, pod", served{port: a, only: []netip.Prefix{pods, hosts}}, served{port: a,
				only: []netip.Prefix{hosts}}, false, true, true},
			{"is for hosts no more, pod", served{port: a, only: []netip.Prefix{pods, hosts}}, served{port: a,
				only: []netip.Prefix{pods}}, false, true, false},
			// Nobody changes where a datagram to a node port goes, so that an entry
			// is stale only if its client would not be served now.
			{"node port begins", gone, bound, true, false, false},
			{"node port ceases", bound, gone, true, false, false},
			{"node port is refused", bound, refused, true, false, true},
			{"node port is dropped", bound, dropped, true, false, true},
			{"node port is for inside, host", bound, served{accept: true, outside: true}, true, false, true},
			{"node port is for inside, pod", bound, served{accept: true, outside: true}, true, true, false},
		} {
			st.at, st.local = netip.AddrPortFrom(vip(v.ipv6, 1), 53), clientAddr[v.ipv6]
			st.f = udp(st.at)
			if c.nodePort {
				st.at = netip.AddrPortFrom(nodeAddr[v.ipv6], 30053)
				st.f = udp(netip.AddrPortFrom(unspecified(v.ipv6), 30053))
			}
			if c.pod {
				st.local = podAddr[v.ipv6]
			}
			st.s.sync(t, c.from.plan(st.f, st.rest, pods))
			check(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
			st.askOthers(t)
			kept := tracked(t, v.ipv6)
			st.ask(t, c.name, c.from, false)
			if !c.stale {
				kept = tracked(t, v.ipv6)
			}
			before := st.s.deleted()
			st.s.sync(t, c.to.plan(st.f, st.rest, pods))
			if got, want := st.s.deleted()-before, map[bool]uint64{true: 1}[c.stale]; got != want {
				t.Errorf("%s: %d entries deleted, want %d", c.name, got, want)
			}
			if got := tracked(t, v.ipv6); !slices.Equal(got, kept) {
				t.Errorf("%s: entries %q, want %q", c.name, got, kept)
			}
			st.ask(t, c.name, c.to, c.stale)
		}
	})
}

// staleTest is what the cases of TestStaleFlows share.
type staleTest struct {
	*lab
	s         *reconciled
	f         lb.Frontend
	at        netip.AddrPort // where it is asked
	local     netip.Addr     // who asks
	rest      Plan           // of others, whose entries are to stay
	tcp       netip.AddrPort
	neighbour []netip.AddrPort
}

// others returns a plan with frontends that differ a little from the one whose
// entry is stale.
func (st *staleTest) others(t *testing.T, ipv6 bool, port uint16) Plan {
	serveUDP(t, ":53")
	at := func(n int, port uint16) netip.AddrPort { return netip.AddrPortFrom(vip(ipv6, n), port) }
	st.tcp = at(1, 53)
	st.neighbour = []netip.AddrPort{at(1, 54), at(2, 53), netip.AddrPortFrom(nodeAddr[ipv6], 53)}
	return Plan{
		TCPPort: serveTCP(t, ":0"), TCP: []netip.AddrPort{st.tcp},
		Ported: []Ported{{udp(at(1, 54)), port}, {udp(at(2, 53)), port}},
		Accept: []lb.Frontend{udp(netip.AddrPortFrom(unspecified(ipv6), 53))},
	}
}

func (st *staleTest) askOthers(t *testing.T) {
	t.Helper()
	for i, at := range st.neighbour {
		st.answered(netip.AddrPortFrom(netip.Addr{}, uint16(5001+i)), udp(at))
	}
	st.answered(netip.AddrPort{}, tcp(st.tcp))
}

// ask asks from always the same port, and checks the answer where there is one. It
// does not wait for one where there is none, as TestScreen does.
func (st *staleTest) ask(t *testing.T, name string, x served, shut bool) {
	t.Helper()
	local := netip.AddrPortFrom(st.local, 5000)
	port := x.port
	if x.accept || port == 0 && nodePort(st.f.Addr) && !x.refuse && !x.drop {
		port = st.at.Port()
	}
	want := fmt.Sprint(port)
	switch {
	case x.refuse:
		want = testbed.Refused
	case port == 0 || shut && (x.outside || x.only != nil):
		check(t, st.tell(local, st.at))
		return
	}
	if got := st.lab.ask(local, udp(st.at)); got != want {
		t.Errorf("%s: answered %q, want %q", name, got, want)
	}
}

// answered wants an answer.
func (l *lab) answered(local netip.AddrPort, f lb.Frontend) {
	l.t.Helper()
	if got := l.ask(local, f); !isAnswer(got) {
		l.t.Errorf("%s asks %s: %s", local, f, got)
	}
}

// tell sends a datagram and wants no answer.
func (l *lab) tell(local, addr netip.AddrPort) error {
	return l.at(local.Addr()).Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(addr))
		if err != nil {
			return err
		}
		_, err = c.Write([]byte("hello"))
		return errors.Join(err, c.Close())
	})
}

// TestForeignNAT is a node port whose packets another program has sent elsewhere,
// such as kube-proxy in its days, before we listen there.
func TestForeignNAT(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		at, anywhere := netip.AddrPortFrom(nodeAddr[v.ipv6], 30053), netip.AddrPortFrom(unspecified(v.ipv6), 30053)
		elsewhere := serveUDP(t, ":0")
		rule := []string{"PREROUTING", "-p", "udp", "--dport", "30053", "-j", "REDIRECT", "--to-ports", fmt.Sprint(elsewhere)}
		output(t, v.command, append([]string{"-t", "nat", "-A"}, rule...)...)
		// Where no rule needs conntrack there is none, nor what it remembers.
		output(t, v.command, "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
		local := netip.AddrPortFrom(clientAddr[v.ipv6], 5000)
		ask := func(want uint16) {
			t.Helper()
			if got := l.ask(local, udp(at)); got != fmt.Sprint(want) {
				t.Errorf("answered %q, want %d", got, want)
			}
		}
		ask(elsewhere)
		output(t, v.command, append([]string{"-t", "nat", "-D"}, rule...)...)
		serveUDP(t, ":30053")
		ask(elsewhere)
		s := &reconciled{steers: v.steerer()}
		s.sync(t, Plan{Accept: []lb.Frontend{udp(anywhere)}})
		if got := s.deleted(); got != 1 {
			t.Errorf("%d entries deleted, want 1", got)
		}
		ask(30053)
	})
}

// TestBoundAfterAsked is a node port that is asked before anybody listens there.
func TestBoundAfterAsked(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		s := &reconciled{steers: v.steerer()}
		s.sync(t, Plan{})
		at, anywhere := netip.AddrPortFrom(nodeAddr[v.ipv6], 30053), netip.AddrPortFrom(unspecified(v.ipv6), 30053)
		local := netip.AddrPortFrom(clientAddr[v.ipv6], 5000)
		if got := l.ask(local, udp(at)); got != testbed.Refused {
			t.Errorf("before: %q", got)
		}
		serveUDP(t, ":30053")
		s.sync(t, Plan{Accept: []lb.Frontend{udp(anywhere)}})
		if got := s.deleted(); got != 0 {
			t.Errorf("%d entries deleted", got)
		}
		l.answered(local, udp(at))
	})
}

// TestStaleFlowsAfterCrash has entries of an earlier process, one of a frontend that is still steered to the same port,
// one to another, and one no more, of which nothing is known: it lives until its timeout, as with kube-proxy.
func TestStaleFlowsAfterCrash(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		a, b := serveUDP(t, ":0"), serveUDP(t, ":0")
		at := func(n int) netip.AddrPort { return netip.AddrPortFrom(vip(v.ipv6, n), 53) }
		syncPlan(t, v.steerer(), Plan{Ported: []Ported{{udp(at(1)), a}, {udp(at(2)), a}, {udp(at(3)), a}}})
		for i := 1; i <= 3; i++ {
			l.answered(netip.AddrPort{}, udp(at(i)))
		}
		s := &reconciled{steers: v.steerer()}
		s.sync(t, Plan{Ported: []Ported{{udp(at(1)), a}, {udp(at(2)), b}}})
		if got, want := tracked(t, v.ipv6), []string{flow(at(1)), flow(at(3))}; !slices.Equal(got, want) {
			t.Errorf("entries %q, want %q", got, want)
		}
		check(t, Cleanup(t.Context()))
		if got, want := tracked(t, v.ipv6), []string{flow(at(3))}; !slices.Equal(got, want) {
			t.Errorf("entries after Cleanup: %q", got)
		}
	})
}

// TestUDPWithoutRules: who asks while rules are lost is answered when they are back, however
// often he asks.
func TestUDPWithoutRules(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		s := &reconciled{steers: v.steerer()}
		at := netip.AddrPortFrom(vip(v.ipv6, 1), 53)
		plan := Plan{Ported: []Ported{{udp(at), serveUDP(t, ":0")}}}
		s.sync(t, plan)
		if v.nftables {
			output(t, "nft", "flush", "chain", map[bool]string{false: "ip", true: "ip6"}[v.ipv6], tableName, "frontends")
		} else {
			output(t, v.command, "-t", "nat", "-F")
		}
		local := netip.AddrPortFrom(clientAddr[v.ipv6], 5000)
		check(t, l.tell(local, at))
		if got, want := tracked(t, v.ipv6), flow(at); !slices.Contains(got, want) {
			t.Fatalf("entries %q, want %q among them", got, want)
		}
		s.was = nil
		verified(t, s, false, "without rules")
		s.sync(t, plan)
		l.answered(local, udp(at))
	})
}
