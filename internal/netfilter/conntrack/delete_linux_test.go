package conntrack

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// chosen chooses flows, and notes which it was asked about.
type chosen struct {
	delete map[string]bool
	asked  map[string]bool
}

func (c chosen) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	c.asked[text(f)] = true
	return c.delete[text(f)]
}

func text(f *netlink.ConntrackFlow) string {
	end := func(ip net.IP, port uint16) netip.AddrPort {
		a, _ := netip.AddrFromSlice(ip)
		return netip.AddrPortFrom(a.Unmap(), port)
	}
	return fmt.Sprintf("%d %s %s, %s %s", f.Forward.Protocol, end(f.Forward.SrcIP, f.Forward.SrcPort),
		end(f.Forward.DstIP, f.Forward.DstPort),
		end(f.Reverse.SrcIP, f.Reverse.SrcPort), end(f.Reverse.DstIP, f.Reverse.DstPort))
}

// TestDeleteFlows: what a filter is asked about are the UDP flows with one of the ports,
// and what it chooses is deleted.
func TestDeleteFlows(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	for _, ipv6 := range []bool{false, true} {
		client, server := net.IP{192, 0, 2, 1}, net.IP{192, 0, 2, 2}
		if ipv6 {
			client, server = net.ParseIP("2001:db8::1"), net.ParseIP("2001:db8::2")
		}
		family := netlink.InetFamily(nfnl.Family(ipv6))
		flow := func(protocol uint8, src, dst uint16) *netlink.ConntrackFlow {
			f := &netlink.ConntrackFlow{FamilyType: uint8(family), TimeOut: 600}
			f.Forward = netlink.IPTuple{Protocol: protocol, SrcIP: client, SrcPort: src, DstIP: server, DstPort: dst}
			f.Reverse = netlink.IPTuple{Protocol: protocol, SrcIP: server, SrcPort: dst + 1, DstIP: client, DstPort: src}
			return f
		}
		to53, also53, from53, other, tcp := flow(unix.IPPROTO_UDP, 1001, 53), flow(unix.IPPROTO_UDP, 1002, 53),
			flow(unix.IPPROTO_UDP, 53, 1003),
			flow(unix.IPPROTO_UDP, 1004, 80), flow(unix.IPPROTO_TCP, 1005, 53)
		tcp.ProtoInfo = &netlink.ProtoInfoTCP{State: 3}
		many := []uint16{53, 1, 2, 3, 4, 5, 6, 7, 8}
		for _, test := range []struct {
			name          string
			asked, asking []uint16
			about         []*netlink.ConntrackFlow
		}{
			{"asked", []uint16{53, 53}, nil, []*netlink.ConntrackFlow{to53, also53}},
			{"asking", nil, []uint16{53}, []*netlink.ConntrackFlow{from53}},
			{"both", []uint16{80, 53}, []uint16{53}, []*netlink.ConntrackFlow{to53, also53, from53, other}},
			{"many", many, many, []*netlink.ConntrackFlow{to53, also53, from53, other}},
			{"none", nil, nil, nil},
		} {
			t.Run(fmt.Sprintf("%v ipv6=%v", test.name, ipv6), func(t *testing.T) {
				err := h.Do(func() error {
					for _, f := range []*netlink.ConntrackFlow{to53, also53, from53, other, tcp} {
						if err := netlink.ConntrackCreate(netlink.ConntrackTable, family, f); err != nil {
							return fmt.Errorf("create %s: %w", text(f), err)
						}
					}
					want := make(map[string]bool)
					for _, f := range test.about {
						want[text(f)] = true
					}
					c := chosen{map[string]bool{text(to53): true, text(from53): true, text(tcp): true}, make(map[string]bool)}
					n, err := DeleteFlows(ipv6, test.asked, test.asking, c)
					if err != nil {
						return err
					}
					if !maps.Equal(c.asked, want) {
						t.Errorf("asked about %v, want %v", slices.Sorted(maps.Keys(c.asked)), slices.Sorted(maps.Keys(want)))
					}
					left, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
					if err != nil {
						return err
					}
					there := make(map[string]bool)
					for _, f := range left {
						there[text(f)] = true
					}
					deleted := uint64(0)
					for _, f := range []*netlink.ConntrackFlow{to53, also53, from53, other, tcp} {
						gone := want[text(f)] && c.delete[text(f)]
						if gone {
							deleted++
						}
						if there[text(f)] == gone {
							t.Errorf("%s is there: %v", text(f), there[text(f)])
						}
					}
					if n != deleted {
						t.Errorf("%d deleted, want %d", n, deleted)
					}
					return netlink.ConntrackTableFlush(netlink.ConntrackTable)
				})
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// growth chooses every 100th flow, and notes by how much memory grows until it is asked.
type growth struct {
	before uint64
	asked  *int
	most   *uint64
}

// heap returns how many bytes are in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (g growth) MatchConntrackFlow(*netlink.ConntrackFlow) bool {
	if *g.asked++; *g.asked%500 == 1 {
		*g.most = max(*g.most, heap()-min(heap(), g.before))
	}
	return *g.asked%100 == 0
}

// TestDeleteFlowsOfMany: of many entries those that are not chosen are not held in memory.
func TestDeleteFlowsOfMany(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	const many = 5000
	err := h.Do(func() error {
		for i := range many {
			if err := (made{protocol: unix.IPPROTO_UDP, to: "10.96.0.10:53"}).create(uint16(1024 + i)); err != nil {
				return fmt.Errorf("create entry %d: %w", i, err)
			}
		}
		g := growth{heap(), new(int), new(uint64)}
		n, err := DeleteFlows(false, []uint16{53}, nil, g)
		if err != nil {
			return err
		}
		if *g.asked != many || n != many/100 {
			t.Errorf("asked about %d, deleted %d; want %d and %d", *g.asked, n, many, many/100)
		}
		// An entry is 200 bytes or more, so that all are 1,000,000. A message to read is 64 KB.
		if *g.most > 500_000 {
			t.Errorf("%d bytes are held for %d entries", *g.most, many)
		}
		left, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if len(left) != many-many/100 {
			t.Errorf("%d entries are left, want %d", len(left), many-many/100)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDeleteGoesOn: an error of one entry, or of one protocol, does not keep the others.
func TestDeleteGoesOn(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	err := h.Do(func() error {
		for i := range 3 {
			if err := (made{protocol: unix.IPPROTO_TCP, to: "10.96.0.1:80", state: tcpSynSent}).create(uint16(1000 +
				i)); err != nil {
				return err
			}
		}
		asked := 0
		n, err := lookup{protocol: unix.IPPROTO_TCP}.delete(false, func(e *entry) bool {
			if asked++; asked == 1 {
				copy(e.Forward.DstIP[:6][4:], "\xff\xff") // the length of the next attribute, which the kernel refuses
			}
			return true
		})
		if n != 2 || asked != 3 || err == nil {
			t.Errorf("%d of %d deleted, %v; want 2 of 3, and an error", n, asked, err)
		}
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}); err != nil {
			return err
		}
		frontends := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:80")}
		_, err = DeleteUnreplied(false, frontends, frontends)
		if n := strings.Count(fmt.Sprint(err), unix.EMFILE.Error()); n != 2 {
			t.Errorf("without descriptors: %v; want an error of each protocol", err)
		}
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	})
	if err != nil {
		t.Fatal(err)
	}
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

// create has the kernel track a connection from a port.
func (m made) create(port uint16) error {
	to := netip.MustParseAddrPort(m.to)
	answers := to
	if m.answers != "" {
		answers = netip.MustParseAddrPort(m.answers)
	}
	from := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port)
	sourceKind, destinationKind := nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if to.Addr().Is6() {
		from = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), port)
		sourceKind, destinationKind = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	big := func(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }
	side := func(source, destination netip.AddrPort) []byte {
		ip := nfnl.Attr(nfnl.Attr(nil, sourceKind, source.Addr().AsSlice()), destinationKind, destination.Addr().AsSlice())
		proto := nfnl.Attr(nfnl.Attr(nfnl.Attr(nil, nl.CTA_PROTO_NUM, []byte{m.protocol}), nl.CTA_PROTO_SRC_PORT,
			big(source.Port())), nl.CTA_PROTO_DST_PORT, big(destination.Port()))
		return nfnl.AttrNested(nfnl.AttrNested(nil, nl.CTA_TUPLE_IP, ip), nl.CTA_TUPLE_PROTO, proto)
	}
	b := nfnl.AttrNested(nfnl.AttrNested(nil, nl.CTA_TUPLE_ORIG, side(from, to)), nl.CTA_TUPLE_REPLY, side(answers, from))
	b = nfnl.Attr(b, nl.CTA_TIMEOUT, binary.BigEndian.AppendUint32(nil, 600))
	b = nfnl.Attr(b, nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, m.status|1<<3)) // IPS_CONFIRMED, which it must be
	state := nfnl.Attr(nil, ctaProtoInfoState, []byte{m.state})
	switch m.protocol {
	case unix.IPPROTO_TCP:
		b = nfnl.AttrNested(b, nl.CTA_PROTOINFO, nfnl.AttrNested(nil, nl.CTA_PROTOINFO_TCP, state))
	case unix.IPPROTO_SCTP: // which needs its tags as well
		state = nfnl.Attr(nfnl.Attr(state, 2, make([]byte, 4)), 3, make([]byte, 4))
		b = nfnl.AttrNested(b, nl.CTA_PROTOINFO, nfnl.AttrNested(nil, nl.CTA_PROTOINFO_SCTP, state))
	}
	_, err := nfnl.Request(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_NEW,
		unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, nfnl.Family(to.Addr().Is6()), b)
	return err
}

// TestDeleteUnreplied: what goes is what nobody has answered nor translated, of the
// protocol, to a frontend, and nothing else, whoever it belongs to.
func TestDeleteUnreplied(t *testing.T) {
	h := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node
	const tcp, udp, sctp, replied = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, statusSeenReply
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
		for protocol, list := range map[uint8][]made{tcp: entries(tcp, sctp, tcpSynSent), sctp: append(entries(sctp, tcp,
			sctpCookieWait), made{sctp, addr(service, 80), "", sctpClosed, 0, true})} {
			all := []netip.AddrPort{netip.AddrPortFrom(service, 80), netip.AddrPortFrom(service, 443),
				netip.AddrPortFrom(anywhere, 30080)}
			for _, frontends := range [][]netip.AddrPort{all, all[:1], all[2:], nil} {
				t.Run(fmt.Sprintf("protocol %d, %v", protocol, frontends), func(t *testing.T) {
					err := h.Do(func() error {
						want := uint64(0)
						for i, m := range list {
							if err := m.create(uint16(1000 + i)); err != nil {
								return fmt.Errorf("create entry: %s: %w", m, err)
							}
						}
						of := map[byte][]netip.AddrPort{protocol: frontends}
						n, err := DeleteUnreplied(ipv6, of[tcp], of[sctp])
						if err != nil {
							return err
						}
						left, err := nfnl.Request(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, nfnl.Family(ipv6),
							nil)
						if err != nil {
							return err
						}
						there := make(map[uint16]bool)
						for _, b := range left {
							there[parseEntry(b).Forward.SrcPort] = true
						}
						for i, m := range list {
							to := netip.MustParseAddrPort(m.to)
							goes := m.goes && slices.ContainsFunc(frontends, func(f netip.AddrPort) bool {
								return f == to || f.Addr().IsUnspecified() && f.Port() == to.Port()
							})
							if goes {
								want++
							}
							if there[uint16(1000+i)] == goes {
								t.Errorf("%s: deleted %v, want %v", m, !goes, goes)
							}
						}
						if n != want {
							t.Errorf("%d deleted, want %d", n, want)
						}
						return netlink.ConntrackTableFlush(netlink.ConntrackTable)
					})
					if err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
}
