package addresses

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// newNode moves the test to a host of its own until it ends.
func newNode(t *testing.T) {
	t.Helper()
	testbed.NewHostsT(t, "node")[0].Enter(t)
}

// newPair moves the test to the node of a small cluster, whose client is on the other end of its eth0.
func newPair(t *testing.T) (node, peer *testbed.Host) {
	t.Helper()
	tb := testbed.NewT(t, testbed.Config{Pods: -1})
	tb.Node.Enter(t)
	return tb.Node, tb.Client
}

var vip = testbed.VIP

func TestAddressesOnTheHost(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6=%v", ipv6), func(t *testing.T) {
			newNode(t)
			testOnHost(t, ipv6, []netip.Addr{vip(ipv6, 1), vip(ipv6, 2), vip(ipv6, 3)}, "tcp", "udp")
		})
	}
}

// TestAddressesOfOthers: neither taken nor given back, whoever has them.
func TestAddressesOfOthers(t *testing.T) {
	newNode(t)
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	theirs := vip(false, 1)
	add := func() {
		t.Helper()
		check(t, netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(theirs.AsSlice())}))
	}
	add()
	a := &Set{}
	check(t, a.Sync(t.Context(), []netip.Addr{theirs, vip(false, 2), netip.MustParseAddr("127.0.0.9")}))
	if want := []netip.Addr{vip(false, 2)}; !slices.Equal(a.Held(), want) || !slices.Equal(onHost(t, false), want) {
		t.Errorf("held are %v, the host has %v of ours; want %v", a.Held(), onHost(t, false), want)
	}
	check(t, a.Sync(t.Context(), nil))
	all, err := netlink.AddrList(lo, netlink.FAMILY_V4)
	check(t, err)
	if !slices.ContainsFunc(all, func(x netlink.Addr) bool { return x.IP.Equal(theirs.AsSlice()) }) {
		t.Error("somebody else's address is gone")
	}
	// It is held as soon as nobody else does.
	check(t, a.Sync(t.Context(), []netip.Addr{theirs}))
	check(t, netlink.AddrDel(lo, &netlink.Addr{IPNet: netlink.NewIPNet(theirs.AsSlice())}))
	if ok, err := a.Verify(t.Context()); ok || err != nil {
		t.Errorf("Verify = %v, %v; want false", ok, err)
	}
	check(t, a.Sync(t.Context(), []netip.Addr{theirs}))
	if got := onHost(t, false); !slices.Equal(got, []netip.Addr{theirs}) {
		t.Errorf("the host has %v of ours, want %v", got, theirs)
	}
	if ok, err := a.Verify(t.Context()); !ok || err != nil {
		t.Errorf("Verify = %v, %v; want true", ok, err)
	}
}

// TestAddressIsInUse: an address stays until the last connection to it has ended.
func TestAddressIsInUse(t *testing.T) {
	newNode(t)
	a := &Set{}
	ip := vip(false, 1)
	check(t, a.Sync(t.Context(), []netip.Addr{ip}))
	l, err := net.Listen("tcp", netip.AddrPortFrom(ip, 80).String())
	check(t, err)
	c, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	defer c.Close()
	served, err := l.Accept()
	check(t, err)
	check(t, l.Close())
	check(t, a.Sync(t.Context(), nil))
	if got := onHost(t, false); len(got) != 1 {
		t.Fatalf("with an open connection the host has %v", got)
	}
	if ok, err := a.Verify(t.Context()); !ok || err != nil || len(a.Held()) != 1 {
		t.Errorf("Verify = %v, %v, and %v held", ok, err, a.Held())
	}
	// A reset leaves no TIME-WAIT behind on either side.
	check(t, errors.Join(served.(*net.TCPConn).SetLinger(0), served.Close()))
	_, _ = c.Read(make([]byte, 1))
	check(t, c.Close())
	if ok, err := a.Verify(t.Context()); !ok || err != nil || len(a.Held()) != 0 || len(onHost(t, false)) != 0 {
		t.Errorf("after the connection: Verify = %v, %v, %v held, %v on the host", ok, err, a.Held(), onHost(t, false))
	}
}

// TestAddressesAreNoSource: what the node asks others does not come from one of them.
func TestAddressesAreNoSource(t *testing.T) {
	node, peer := newPair(t)
	for _, ipv6 := range []bool{false, true} {
		a := &Set{IPv6: ipv6}
		check(t, a.Sync(t.Context(), []netip.Addr{vip(ipv6, 1)}))
		route, err := netlink.RouteGet(peer.Addr(ipv6).AsSlice())
		check(t, err)
		if got, _ := netip.AddrFromSlice(route[0].Src); got.Unmap() != node.Addr(ipv6) && got != node.Alt6 {
			t.Errorf("the node asks %s from %s, want %s", peer.Addr(ipv6), got, node.Addr(ipv6))
		}
	}
}

// TestAddressDevice: asked for by name, and what is on another device goes.
func TestAddressDevice(t *testing.T) {
	newPair(t)
	a := &Set{Interface: "eth0"}
	check(t, a.Sync(t.Context(), []netip.Addr{vip(false, 1)}))
	link, err := netlink.LinkByName("eth0")
	check(t, err)
	on := func() bool {
		all, err := netlink.AddrList(link, netlink.FAMILY_V4)
		check(t, err)
		return slices.ContainsFunc(all, func(x netlink.Addr) bool { return x.IP.Equal(vip(false, 1).AsSlice()) })
	}
	if !on() {
		t.Error("the address is not on eth0")
	}
	check(t, (&Set{}).Sync(t.Context(), []netip.Addr{vip(false, 1)}))
	if on() || len(onHost(t, false)) != 1 {
		t.Errorf("after a start without a name: on eth0 %v, ours are %v", on(), onHost(t, false))
	}
	err = (&Set{Interface: "nosuch0"}).Sync(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "nosuch0") {
		t.Errorf("an interface that is not there: %v", err)
	}
}

// TestAddressDummy: without a name the addresses are on a device of our own, which a cleanup
// removes, but not one of somebody else that is called so. A kernel without dummy devices
// has them on the loopback device, which all other tests see.
func TestAddressDummy(t *testing.T) {
	newNode(t)
	theirs := &netlink.Dummy{LinkAttrs: netlink.NewLinkAttrs()}
	theirs.Name = addressDevice
	if err := netlink.LinkAdd(theirs); errors.Is(err, unix.EOPNOTSUPP) {
		if os.Getenv("SLUICE_REQUIRE_DUMMY") == "1" {
			t.Fatal("this kernel has no dummy devices")
		}
		t.Skip("NOT TESTED: this kernel has no dummy devices (make test-vm tests it; SLUICE_REQUIRE_DUMMY=1 makes this a failure)")
	} else {
		check(t, err)
	}
	ip := vip(false, 1)
	on := func() string { // where our address is
		t.Helper()
		all, err := host{}.list(false)
		check(t, err)
		for _, e := range all {
			if e.ours && e.ip == ip {
				i, err := net.InterfaceByIndex(int(e.index))
				check(t, err)
				return i.Name
			}
		}
		return ""
	}
	for _, ours := range []bool{false, true} {
		check(t, (&Set{}).Sync(t.Context(), []netip.Addr{ip}))
		if got := on(); got != addressDevice {
			t.Errorf("the address is on %q, want %s", got, addressDevice)
		}
		listen(t, "tcp", netip.AddrPortFrom(ip, 80))
		check(t, Cleanup(t.Context()))
		if got := on(); got != "" {
			t.Errorf("after a cleanup the address is on %s", got)
		}
		link, err := netlink.LinkByName(addressDevice)
		if left := err == nil; left == ours {
			t.Errorf("after a cleanup the device is there: %v, and it is ours: %v", left, ours)
		}
		if !ours {
			check(t, netlink.LinkDel(link))
		}
	}
}

// TestMarkOfAnOlderKernel: before 5.18 there is no protocol, and the metric tells.
func TestMarkOfAnOlderKernel(t *testing.T) {
	entry := func(metric uint32, proto ...byte) []byte {
		m := make([]byte, unix.SizeofIfAddrmsg)
		attr := func(kind uint16, value []byte) {
			m = append(m, byte(4+len(value)), 0, byte(kind), 0)
			m = append(m, value...)
			for len(m)%4 != 0 {
				m = append(m, 0)
			}
		}
		attr(unix.IFA_LOCAL, []byte{10, 96, 0, 1})
		attr(ifaRTPriority, []byte{byte(metric), byte(metric >> 8), byte(metric >> 16), 0})
		if len(proto) > 0 {
			attr(ifaProto, proto)
		}
		return m
	}
	for _, x := range []struct {
		m    []byte
		ours bool
	}{{entry(addressMetric), true}, {entry(addressMetric, addressProto), true}, {entry(addressMetric, 4), false},
		{entry(1, addressProto), false}, {entry(1), false}} {
		e, err := parseAddress(x.m)
		check(t, err)
		if e.ours != x.ours || e.ip != vip(false, 1) {
			t.Errorf("%x: %+v, want ours %v", x.m, e, x.ours)
		}
	}
	if _, err := parseAddress(nil); err == nil {
		t.Error("an empty message is no error")
	}
}
