package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

// flows returns the original destinations of all conntrack entries, with their
// protocol number.
func flows(t *testing.T, ipv6 bool) []string {
	t.Helper()
	family := netlink.InetFamily(unix.AF_INET)
	if ipv6 {
		family = unix.AF_INET6
	}
	list, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
	check(t, err)
	var out []string
	for _, f := range list {
		dst, _ := netip.AddrFromSlice(f.Forward.DstIP)
		out = append(out, fmt.Sprintf("%d %s", f.Forward.Protocol, netip.AddrPortFrom(dst, f.Forward.DstPort)))
	}
	slices.Sort(out)
	return out
}

func flow(addr netip.AddrPort) string { return fmt.Sprintf("%d %s", unix.IPPROTO_UDP, addr) }

// TestStaleFlows keeps one client port asking while its frontend begins to be
// steered, moves, is refused and is given up.
func TestStaleFlows(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		a, b := serveUDP(t, ":0"), serveUDP(t, ":0")
		at := func(n int, port uint16) netip.AddrPort { return netip.AddrPortFrom(vip(v.ipv6, n), port) }
		dns, otherPort, otherAddr := at(1, 53), at(1, 54), at(2, 53)
		onNode := netip.AddrPortFrom(nodeAddr[v.ipv6], 53) // a node port with the same number
		tcpPort := serveTCP(t, ":0")
		rest := []Ported{{udp(otherPort), a}, {udp(otherAddr), a}, {udp(netip.AddrPortFrom(unspecified(v.ipv6), 53)), a}}
		s := v.steerer()
		plan := Plan{TCPPort: tcpPort, TCP: []netip.AddrPort{dns}, Ported: rest}
		syncPlan(t, s, plan)

		ask := func(local uint16, addr netip.AddrPort, want uint16) {
			t.Helper()
			err := l.onClient(func() error {
				got, err := askUDP(local, addr)
				if text := fmt.Sprintf("%d hello", want); err == nil && got != text {
					err = fmt.Errorf("answered %q, want %q", got, text)
				}
				return err
			})
			if err != nil {
				t.Errorf("UDP %s: %v", addr, err)
			}
		}
		ask(5001, otherPort, a)
		ask(5002, otherAddr, a)
		ask(5003, onNode, a)
		check(t, l.onClient(func() error { _, err := askTCP(dns); return err }))
		kept := flows(t, v.ipv6)
		step := func(what string, p []Ported, refuse ...lb.Frontend) {
			t.Helper()
			before := s.Stats().FlowsDeleted
			plan.Ported, plan.Refuse = append(p, rest...), refuse
			syncPlan(t, s, plan)
			if got := s.Stats().FlowsDeleted - before; got != 1 {
				t.Errorf("%s: %d entries deleted, want 1", what, got)
			}
			if got := flows(t, v.ipv6); !slices.Equal(got, kept) {
				t.Errorf("%s: entries %q, want %q", what, got, kept)
			}
		}
		// Nobody answers yet: the entry is that of a packet sent on its way.
		check(t, l.onClient(func() error { return tell(5000, dns) }))
		step("begins", []Ported{{udp(dns), a}})
		ask(5000, dns, a)
		step("moves", []Ported{{udp(dns), b}})
		ask(5000, dns, b)
		step("is refused", nil, udp(dns))
		if err := l.onClient(func() error { _, err := askUDP(5000, dns); return err }); !refused(err) {
			t.Errorf("refused: %v", err)
		}
		plan.Ported, plan.Refuse = append([]Ported{{udp(dns), a}}, rest...), nil
		syncPlan(t, s, plan)
		ask(5000, dns, a)
		step("ceases", nil)
	})
}

// tell sends a datagram and wants no answer.
func tell(local uint16, addr netip.AddrPort) error {
	fd, err := unix.Socket(map[bool]int{false: unix.AF_INET, true: unix.AF_INET6}[addr.Addr().Is6()], unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var from, to unix.Sockaddr
	if addr.Addr().Is6() {
		from, to = &unix.SockaddrInet6{Port: int(local)}, &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
	} else {
		from, to = &unix.SockaddrInet4{Port: int(local)}, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	return errors.Join(unix.Bind(fd, from), unix.Sendto(fd, []byte("hello"), 0, to))
}

// TestStaleFlowsAfterCrash has entries of an earlier process, one of a frontend
// that is still steered to the same port, one to another, and one no more.
func TestStaleFlowsAfterCrash(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		a, b := serveUDP(t, ":0"), serveUDP(t, ":0")
		at := func(n int) netip.AddrPort { return netip.AddrPortFrom(vip(v.ipv6, n), 53) }
		syncPlan(t, v.steerer(), Plan{Ported: []Ported{{udp(at(1)), a}, {udp(at(2)), a}, {udp(at(3)), a}}})
		for i := 1; i <= 3; i++ {
			check(t, l.onClient(func() error { _, err := askUDP(0, at(i)); return err }))
		}
		s := v.steerer()
		syncPlan(t, s, Plan{Ported: []Ported{{udp(at(1)), a}, {udp(at(2)), b}}})
		if got, want := flows(t, v.ipv6), []string{flow(at(1))}; !slices.Equal(got, want) {
			t.Errorf("entries %q, want %q", got, want)
		}
		check(t, Cleanup(t.Context()))
		if got := flows(t, v.ipv6); len(got) != 0 {
			t.Errorf("entries after Cleanup: %q", got)
		}
	})
}

// TestFlowFilter tells an address of the node that is a frontend from a node port
// with the same number, and a path to the proxy from one to somebody else.
func TestFlowFilter(t *testing.T) {
	node, pod, service := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.244.0.9"), netip.MustParseAddr("10.96.0.10")
	external, dns, anywhere := netip.AddrPortFrom(node, 53), netip.AddrPortFrom(service, 53), addr("0.0.0.0:53")
	entry := func(to, reply netip.AddrPort) *netlink.ConntrackFlow {
		return &netlink.ConntrackFlow{
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, DstIP: to.Addr().AsSlice(), DstPort: to.Port()},
			Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: reply.Addr().AsSlice(), SrcPort: reply.Port()},
		}
	}
	at := netip.AddrPortFrom
	for _, c := range []struct {
		name    string
		changed netip.AddrPort
		steered map[netip.AddrPort]uint16
		flow    *netlink.ConntrackFlow
		want    bool
	}{
		{"on the old port", dns, map[netip.AddrPort]uint16{dns: 2}, entry(dns, at(node, 1)), true},
		{"on the new port", dns, map[netip.AddrPort]uint16{dns: 2}, entry(dns, at(node, 2)), false},
		{"on the new port's number elsewhere", dns, map[netip.AddrPort]uint16{dns: 2}, entry(dns, at(pod, 2)), true},
		{"not steered, same number", dns, map[netip.AddrPort]uint16{dns: 53}, entry(dns, dns), true},
		{"no more steered", dns, nil, entry(dns, at(node, 2)), true},
		{"another port", dns, nil, entry(at(service, 54), at(node, 2)), false},
		{"another address", dns, nil, entry(at(pod, 53), at(node, 2)), false},
		{"node port", anywhere, map[netip.AddrPort]uint16{anywhere: 2}, entry(external, at(node, 1)), true},
		{"node port on loopback", anywhere, map[netip.AddrPort]uint16{anywhere: 2}, entry(addr("127.0.0.1:53"), addr("127.0.0.1:1")), true},
		{"node port, no address of the node", anywhere, map[netip.AddrPort]uint16{anywhere: 2}, entry(dns, at(node, 1)), false},
		{"node port hidden by a frontend", anywhere, map[netip.AddrPort]uint16{anywhere: 2, external: 1}, entry(external, at(node, 1)), false},
		{"frontend that hid a node port", external, map[netip.AddrPort]uint16{anywhere: 2}, entry(external, at(node, 1)), true},
	} {
		f := flowFilter{changed: map[netip.AddrPort]bool{c.changed: true}, steered: c.steered, local: map[netip.Addr]bool{node: true}}
		if got := f.MatchConntrackFlow(c.flow); got != c.want {
			t.Errorf("%s: deleted = %v", c.name, got)
		}
		c.flow.Forward.Protocol = unix.IPPROTO_TCP
		if f.MatchConntrackFlow(c.flow) {
			t.Errorf("%s: a TCP entry is deleted", c.name)
		}
	}
}
