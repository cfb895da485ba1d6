package node

import (
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/testbed"
)

var check = testbed.Check

// TestNodeAddresses: addresses are remembered while none comes or goes, and read again
// after that, be it one, more than the kernel keeps word of, or the interface they are on.
func TestNodeAddresses(t *testing.T) {
	runtime.LockOSThread() // and it ends with the test: its namespace is of no use to others
	check(t, unix.Unshare(unix.CLONE_NEWNET))
	var n Addresses
	check(t, n.Watch())
	defer n.Close()
	get := func() []netip.Addr {
		t.Helper()
		got, err := n.Get()
		check(t, err)
		return got
	}
	get()
	remembered := []netip.Addr{netip.MustParseAddr("203.0.113.1")} // which the node has not
	remember := func(when string) {
		t.Helper()
		n.known = slices.Clone(remembered)
		if got := get(); !slices.Equal(got, remembered) {
			t.Fatalf("%s: %v, want %v: nothing has changed, and they are read again", when, got, remembered)
		}
	}
	remember("at first")

	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "one"}, PeerName: "other"}
	check(t, netlink.LinkAdd(pair))
	remember("with an interface more")
	var want []netip.Addr
	for i := range 200 {
		ip := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		addr, err := netlink.ParseAddr(ip.String() + "/32")
		check(t, err)
		check(t, netlink.AddrAdd(pair, addr))
		want = append(want, ip)
		if i == 0 || i == 199 { // in between the kernel has more to tell than it keeps
			if got := get(); !slices.Equal(got, want) {
				t.Fatalf("with %d addresses: %v, want %v", i+1, got, want)
			}
		}
	}
	remember("with 200 addresses")
	gone, err := netlink.ParseAddr("10.0.0.7/32")
	check(t, err)
	check(t, netlink.AddrDel(pair, gone))
	if got := get(); slices.Contains(got, netip.MustParseAddr("10.0.0.7")) || len(got) != 199 {
		t.Errorf("with an address less: %v", got)
	}
	remember("with 199 addresses")
	check(t, netlink.LinkDel(pair))
	if got := get(); len(got) != 0 {
		t.Errorf("without the interface: %v", got)
	}
}

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }
