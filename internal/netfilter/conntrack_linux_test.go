package netfilter

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/bench/testbed"
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
	return fmt.Sprintf("%d %s %s, %s %s", f.Forward.Protocol, end(f.Forward.SrcIP, f.Forward.SrcPort), end(f.Forward.DstIP, f.Forward.DstPort),
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
		family := netlink.InetFamily(Family(ipv6))
		flow := func(protocol uint8, src, dst uint16) *netlink.ConntrackFlow {
			f := &netlink.ConntrackFlow{FamilyType: uint8(family), TimeOut: 600}
			f.Forward = netlink.IPTuple{Protocol: protocol, SrcIP: client, SrcPort: src, DstIP: server, DstPort: dst}
			f.Reverse = netlink.IPTuple{Protocol: protocol, SrcIP: server, SrcPort: dst + 1, DstIP: client, DstPort: src}
			return f
		}
		to53, also53, from53, other, tcp := flow(unix.IPPROTO_UDP, 1001, 53), flow(unix.IPPROTO_UDP, 1002, 53), flow(unix.IPPROTO_UDP, 53, 1003),
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
