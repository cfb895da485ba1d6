package conntrack

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

var check = testbed.Check

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// TestDeleteFlows: what a filter is asked about are the flows of a protocol with one of the ports,
// and what it chooses is deleted.
func TestDeleteFlows(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	const udp, sctp = unix.IPPROTO_UDP, unix.IPPROTO_SCTP
	for _, ipv6 := range []bool{false, true} {
		server := netip.MustParseAddr(map[bool]string{false: "192.0.2.2", true: "2001:db8::2"}[ipv6])
		to := func(port uint16) string { return netip.AddrPortFrom(server, port).String() }
		entries := map[uint16]made{ // by source port
			1001: {protocol: udp, to: to(53), answers: to(54), goes: true}, 1002: {protocol: udp, to: to(53)},
			53: {protocol: udp, to: to(1003), goes: true}, 1004: {protocol: udp, to: to(80)},
			1005: {protocol: unix.IPPROTO_TCP, to: to(53), state: 3, goes: true},
			1006: {protocol: sctp, to: to(53), answers: to(54), state: 4, status: uint32(SeenReply), goes: true},
			1007: {protocol: sctp, to: to(53), state: 4, status: uint32(SeenReply)},
		}
		for _, test := range []struct {
			name      string
			protocol  lb.Protocol
			frontends []uint16 // ports
			answers   bool
			about     []uint16 // source ports
		}{
			{"asked", lb.UDP, []uint16{53, 53}, false, []uint16{1001, 1002}},
			{"both", lb.UDP, []uint16{80, 53}, true, []uint16{53, 1001, 1002, 1004}},
			{"many", lb.UDP, []uint16{53, 1, 2, 3, 4, 5, 6, 7, 8}, true, []uint16{53, 1001, 1002, 1004}},
			{"none", lb.UDP, nil, true, nil},
			{"associations", lb.SCTP, []uint16{53, 80}, false, []uint16{1006, 1007}},
		} {
			h.DoT(t, func() error {
				for port, m := range entries {
					if err := m.create(port); err != nil {
						return fmt.Errorf("create %s: %w", m, err)
					}
				}
				asked := make(map[uint16]bool)
				from := lookup{protocol: udp, kind: nl.CTA_PROTO_SRC_PORT, port: 53}
				answers, err := from.list(ipv6, func(*Entry) bool { return true })
				if err != nil || len(answers) != 1 {
					t.Errorf("%s, ipv6 %v: %d flows from port 53, %v; want 1", test.name, ipv6, len(answers), err)
				}
				n, err := DeleteFlows(Which{Protocol: test.protocol, IPv6: ipv6, Frontends: frontends(test.frontends...),
					Answers: test.answers}, func(e *Entry) bool {
					f := e.Flow
					m := entries[f.Src.Port()]
					if want := m.flow(f.Src.Port()); f != want {
						t.Errorf("%s: read as %v, want %v", m, f, want)
					}
					asked[f.Src.Port()] = true
					return m.goes
				})
				if got := slices.Sorted(maps.Keys(asked)); !slices.Equal(got, test.about) {
					t.Errorf("%s, ipv6 %v: asked about %v, want %v", test.name, ipv6, got, test.about)
				}
				left := sourcesLeft(t, ipv6)
				for port, m := range entries {
					if gone := asked[port] && m.goes; left[port] == gone {
						t.Errorf("%s, ipv6 %v: %s is there: %v", test.name, ipv6, m, left[port])
					}
				}
				if n != uint64(len(entries)-len(left)) {
					t.Errorf("%s, ipv6 %v: %d deleted, want %d", test.name, ipv6, n, len(entries)-len(left))
				}
				return errors.Join(err, netlink.ConntrackTableFlush(netlink.ConntrackTable))
			})
		}
	}
}

// frontends have these ports.
func frontends(ports ...uint16) iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		for _, p := range ports {
			if !yield(netip.AddrPortFrom(netip.Addr{}, p)) {
				return
			}
		}
	}
}

// sourcesLeft returns the source ports of all entries of a family.
func sourcesLeft(t *testing.T, ipv6 bool) map[uint16]bool {
	t.Helper()
	const get = nl.IPCTNL_MSG_CT_GET
	ports := make(map[uint16]bool)
	err := nfnl.Request(unix.NFNL_SUBSYS_CTNETLINK, get, unix.NLM_F_DUMP, nfnl.Family(ipv6), nil, nil,
		func(m nfnl.Value) { ports[parseEntry(m).Src.Port()] = true })
	if err != nil {
		t.Error(err)
	}
	return ports
}

// heap returns how many bytes are in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestDeleteFlowsOfMany: of many entries those that are not chosen are not held in memory.
func TestDeleteFlowsOfMany(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	const many = 5000
	h.DoT(t, func() error {
		for i := range many {
			if err := (made{protocol: unix.IPPROTO_UDP, to: "10.96.0.10:53"}).create(uint16(1024 + i)); err != nil {
				return fmt.Errorf("create entry %d: %w", i, err)
			}
		}
		asked, before, most := 0, heap(), uint64(0)
		n, err := DeleteFlows(Which{Protocol: lb.UDP, Frontends: frontends(53)}, func(*Entry) bool {
			if asked++; asked%500 == 1 {
				most = max(most, heap()-min(heap(), before))
			}
			return asked%100 == 0
		})
		if asked != many || n != many/100 {
			t.Errorf("asked about %d, deleted %d; want %d and %d", asked, n, many, many/100)
		}
		// An entry is 200 bytes or more, so that all are 1,000,000. A message to read is 64 KB.
		if most > 500_000 {
			t.Errorf("%d bytes are held for %d entries", most, many)
		}
		if left := sourcesLeft(t, false); len(left) != many-many/100 {
			t.Errorf("%d entries are left, want %d", len(left), many-many/100)
		}
		return err
	})
}

// TestDeleteGoesOn: an error of one entry, or of one protocol, does not keep the others.
func TestDeleteGoesOn(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	h.DoT(t, func() error {
		begun := made{protocol: unix.IPPROTO_TCP, to: "10.96.0.1:80", state: byte(TCPSynSent)}
		for i := range uint16(3) {
			if err := begun.create(1000 + i); err != nil {
				return err
			}
		}
		list, err := lookup{protocol: unix.IPPROTO_TCP}.list(false, func(*Entry) bool { return true })
		if len(list) != 3 || err != nil {
			t.Fatalf("%d entries, %v; want 3", len(list), err)
		}
		list[0] = nfnl.AttrNested(nil, nl.CTA_TUPLE_ORIG, nil) // which the kernel refuses
		if n, err := deleteEntries(false, list); n != 2 || err == nil {
			t.Errorf("%d deleted, %v; want 2 of 3, and an error", n, err)
		}
		restore, err := testbed.LimitDescriptors(0)
		if err != nil {
			return err
		}
		frontends := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:80")}
		_, err = DeleteUnreplied(false, frontends, frontends)
		if n := strings.Count(fmt.Sprint(err), unix.EMFILE.Error()); n != 2 {
			t.Errorf("without descriptors: %v; want an error of each protocol", err)
		}
		return restore()
	})
}

// TestDeleteManyAtOnce: of hundreds of entries each is deleted, but those that the kernel refuses, wherever they are.
func TestDeleteManyAtOnce(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	h.DoT(t, func() error {
		const many = 301
		for i := range uint16(many) {
			if err := (made{protocol: unix.IPPROTO_UDP, to: "10.96.0.10:53"}).create(1024 + i); err != nil {
				return fmt.Errorf("create entry %d: %w", i, err)
			}
		}
		list, err := lookup{protocol: unix.IPPROTO_UDP}.list(false, func(*Entry) bool { return true })
		if len(list) != many || err != nil {
			t.Fatalf("%d entries, %v; want %d", len(list), err, many)
		}
		refused := []int{0, 63, 64, 65, 200, many - 1} // also the first and the last of one write
		for _, i := range refused {
			list[i] = nfnl.AttrNested(nil, nl.CTA_TUPLE_ORIG, nil)
		}
		list[100] = list[101] // which is gone when it is asked for once more
		want := uint64(many - len(refused))
		if n, err := deleteEntries(false, list); n != want || !errors.Is(err, unix.EINVAL) {
			t.Errorf("%d deleted, %v; want %d of %d, and EINVAL", n, err, want, many)
		}
		if left := sourcesLeft(t, false); len(left) != len(refused)+1 {
			t.Errorf("%d entries are left, want %d", len(left), len(refused)+1)
		}
		return nil
	})
}

// made is an entry that a test makes.
type made struct {
	protocol uint8
	to       string
	answers  string // if translated
	state    byte
	status   uint32
	goes     bool
}

func (m made) String() string {
	return fmt.Sprintf("protocol %d to %s, answered by %q, state %d, status %#x", m.protocol, m.to, m.answers, m.state,
		m.status)
}

// flow is what becomes of what is sent from a port.
func (m made) flow(port uint16) Flow {
	to := netip.MustParseAddrPort(m.to)
	f := Flow{Src: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port), Dst: to, Replies: to}
	if m.answers != "" {
		f.Replies = netip.MustParseAddrPort(m.answers)
	}
	if to.Addr().Is6() {
		f.Src = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), port)
	}
	return f
}

// create has the kernel track a connection from a port.
func (m made) create(port uint16) error {
	return nfnl.Request(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_NEW,
		unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, nfnl.Family(m.flow(port).Src.Addr().Is6()), m.attributes(port),
		nil, nil)
}

// attributes are those of an entry.
func (m made) attributes(port uint16) []byte {
	f := m.flow(port)
	ipv6 := f.Src.Addr().Is6()
	sourceKind, destinationKind := nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if ipv6 {
		sourceKind, destinationKind = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	side := func(source, destination netip.AddrPort) []byte {
		ip := nfnl.Attr(nfnl.Attr(nil, sourceKind, source.Addr().AsSlice()), destinationKind, destination.Addr().AsSlice())
		proto := nfnl.Attr(nfnl.Attr(nfnl.Attr(nil, nl.CTA_PROTO_NUM, []byte{m.protocol}), nl.CTA_PROTO_SRC_PORT,
			nl.BEUint16Attr(source.Port())), nl.CTA_PROTO_DST_PORT, nl.BEUint16Attr(destination.Port()))
		return nfnl.AttrNested(nfnl.AttrNested(nil, nl.CTA_TUPLE_IP, ip), nl.CTA_TUPLE_PROTO, proto)
	}
	b := nfnl.AttrNested(nil, nl.CTA_TUPLE_ORIG, side(f.Src, f.Dst))
	b = nfnl.AttrNested(b, nl.CTA_TUPLE_REPLY, side(f.Replies, f.Src))
	b = nfnl.Attr(b, nl.CTA_TIMEOUT, nl.BEUint32Attr(600))
	b = nfnl.Attr(b, nl.CTA_STATUS, nl.BEUint32Attr(m.status|1<<3)) // IPS_CONFIRMED, which it must be
	state := nfnl.Attr(nil, ctaProtoInfoState, []byte{m.state})
	switch m.protocol {
	case unix.IPPROTO_TCP:
		b = nfnl.AttrNested(b, nl.CTA_PROTOINFO, nfnl.AttrNested(nil, nl.CTA_PROTOINFO_TCP, state))
	case unix.IPPROTO_SCTP: // which needs its tags as well
		state = nfnl.Attr(nfnl.Attr(state, 2, make([]byte, 4)), 3, make([]byte, 4))
		b = nfnl.AttrNested(b, nl.CTA_PROTOINFO, nfnl.AttrNested(nil, nl.CTA_PROTOINFO_SCTP, state))
	}
	return b
}

// TestDeleteUnreplied: what goes is what nobody has answered nor translated, of the
// protocol, to a frontend, and nothing else, whoever it belongs to.
func TestDeleteUnreplied(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	const tcp, udp, sctp, replied = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, uint32(SeenReply)
	addr := func(host netip.Addr, port uint16) string { return netip.AddrPortFrom(host, port).String() }
	for _, ipv6 := range []bool{false, true} {
		node, alt := h.Addr4, h.Alt4
		service, other, loopback, anywhere := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2"),
			netip.MustParseAddr("127.0.0.1"), netip.IPv4Unspecified()
		if ipv6 {
			node, alt = h.Addr6, h.Alt6
			service, other, loopback, anywhere = netip.MustParseAddr("2001:db8:96::1"), netip.MustParseAddr("2001:db8:96::2"),
				netip.IPv6Loopback(), netip.IPv6Unspecified()
		}
		entries := func(protocol, otherProtocol, begun byte) []made {
			return []made{
				{protocol, addr(service, 80), "", begun, 0, true},
				{protocol, addr(service, 443), "", begun, 0, true},
				{protocol, addr(node, 30080), "", begun, 0, true},
				{protocol, addr(alt, 30080), "", begun, 0, true},
				{otherProtocol, addr(service, 80), "", 3 - begun, 0, false},
				{udp, addr(service, 80), "", 0, 0, false},
				{protocol, addr(service, 81), "", begun, 0, false},
				{protocol, addr(other, 80), "", begun, 0, false},
				{protocol, addr(service, 80), "", begun, replied, false},
				{protocol, addr(service, 80), "", 3, replied, false},
				{protocol, addr(service, 80), "", 3, 0, false}, // answered by a way that does not lead by us
				{protocol, addr(service, 80), addr(other, 80), begun, 0, false},
				{protocol, addr(service, 80), addr(service, 8080), begun, 0, false},
				{protocol, addr(service, 80), addr(node, 40000), begun, 0, false},
				{protocol, addr(loopback, 30080), "", begun, 0, false},
				{protocol, addr(other, 30080), "", begun, 0, false},
			}
		}
		closed := made{sctp, addr(service, 80), "", byte(SCTPClosed), 0, true}
		for protocol, list := range map[uint8][]made{tcp: entries(tcp, sctp, byte(TCPSynSent)),
			sctp: append(entries(sctp, tcp, byte(SCTPCookieWait)), closed)} {
			all := []netip.AddrPort{netip.AddrPortFrom(service, 80), netip.AddrPortFrom(service, 443),
				netip.AddrPortFrom(anywhere, 30080)}
			for _, frontends := range [][]netip.AddrPort{all, all[:1], all[2:], nil} {
				what := fmt.Sprintf("protocol %d, %v", protocol, frontends)
				h.DoT(t, func() error {
					for i, m := range list {
						if err := m.create(uint16(1000 + i)); err != nil {
							return fmt.Errorf("create entry: %s: %w", m, err)
						}
					}
					of := map[uint8][]netip.AddrPort{protocol: frontends}
					n, err := DeleteUnreplied(ipv6, of[tcp], of[sctp])
					if err != nil {
						return err
					}
					left := sourcesLeft(t, ipv6)
					for i, m := range list {
						to := netip.MustParseAddrPort(m.to)
						goes := m.goes && slices.ContainsFunc(frontends, func(f netip.AddrPort) bool {
							return f == to || f.Addr().IsUnspecified() && f.Port() == to.Port()
						})
						if left[uint16(1000+i)] == goes {
							t.Errorf("%s: %s: deleted %v, want %v", what, m, !goes, goes)
						}
					}
					if want := len(list) - len(left); n != uint64(want) {
						t.Errorf("%s: %d deleted, want %d", what, n, want)
					}
					return netlink.ConntrackTableFlush(netlink.ConntrackTable)
				})
			}
		}
	}
}
