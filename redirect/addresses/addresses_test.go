package addresses

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// fakeHost is an addressHost in memory.
type fakeHost struct {
	t            *testing.T
	ours, theirs map[netip.Addr]bool
	used         map[netip.Addr]bool
	broken       map[netip.Addr]error // what adding and removing an address fails with
	calls        []string
	lists        int
}

func newFakeHost(t *testing.T) *fakeHost {
	set := func() map[netip.Addr]bool { return make(map[netip.Addr]bool) }
	return &fakeHost{t: t, ours: set(), theirs: set(), used: set(), broken: make(map[netip.Addr]error)}
}

func (h *fakeHost) find(string) (uint32, error) { return 7, nil }

func (h *fakeHost) list(bool) (out []address, err error) {
	h.lists++
	for ip := range h.ours {
		out = append(out, address{ip, 7, true})
	}
	for ip := range h.theirs {
		out = append(out, address{ip, 7, false})
	}
	return out, nil
}

func (h *fakeHost) add(at address) (bool, error) {
	h.calls = append(h.calls, "+"+at.ip.String())
	if err := h.broken[at.ip]; err != nil {
		return false, err
	}
	if h.theirs[at.ip] {
		return true, nil
	}
	if h.ours[at.ip] {
		h.t.Errorf("%s is added twice", at.ip)
	}
	h.ours[at.ip] = true
	return false, nil
}

func (h *fakeHost) ready(_ context.Context, added []address) error {
	for _, at := range added {
		if !h.ours[at.ip] {
			h.t.Errorf("%s is waited for, which was not added", at.ip)
		}
		h.calls = append(h.calls, "?"+at.ip.String())
	}
	return nil
}

func (h *fakeHost) remove(at address) error {
	h.calls = append(h.calls, "-"+at.ip.String())
	if err := h.broken[at.ip]; err != nil {
		return err
	}
	if !h.ours[at.ip] {
		h.t.Errorf("%s is removed, which is not ours", at.ip)
	}
	delete(h.ours, at.ip)
	return nil
}

func (h *fakeHost) busy(bool) (map[netip.Addr]bool, error) { return h.used, nil }

var check = testbed.Check

func parse(text string) (out []netip.Addr) {
	for _, s := range strings.Fields(text) {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestAddresses(t *testing.T) {
	h := newFakeHost(t)
	a := &Set{sys: h}
	broken := errors.New("access is denied")
	step := func(want, calls, held string) {
		t.Helper()
		h.calls = nil
		err := a.Sync(t.Context(), parse(want))
		if failing := len(h.broken) > 0; failing != errors.Is(err, broken) {
			t.Errorf("Sync of %s = %v", want, err)
		}
		if got := strings.Join(h.calls, " "); got != calls {
			t.Errorf("Sync of %s did %q, want %q", want, got, calls)
		}
		if !slices.Equal(a.Held(), parse(held)) {
			t.Errorf("after %s held are %v, want %s", want, a.Held(), held)
		}
	}
	h.ours[netip.MustParseAddr("10.96.0.9")] = true   // of a process that was killed
	h.theirs[netip.MustParseAddr("192.0.2.1")] = true // the node's own
	step("10.96.0.2 10.96.0.1 10.96.0.1 127.0.0.5 192.0.2.1 2001:db8::1 ::ffff:10.96.0.3",
		"+10.96.0.1 +10.96.0.2 +10.96.0.3 ?10.96.0.1 ?10.96.0.2 ?10.96.0.3 -10.96.0.9", "10.96.0.1 10.96.0.2 10.96.0.3")
	step("10.96.0.1 10.96.0.2", "-10.96.0.3", "10.96.0.1 10.96.0.2")
	step("10.96.0.1 10.96.0.2", "", "10.96.0.1 10.96.0.2")
	if h.lists != 1 {
		t.Errorf("the host was asked %d times what it has, want once", h.lists)
	}
	// One that fails keeps no other from being there, and is tried again.
	h.broken[netip.MustParseAddr("10.96.0.4")] = broken
	step("10.96.0.1 10.96.0.4 10.96.0.5", "+10.96.0.4 +10.96.0.5 ?10.96.0.5 -10.96.0.2", "10.96.0.1 10.96.0.5")
	clear(h.broken)
	step("10.96.0.1 10.96.0.4 10.96.0.5", "+10.96.0.4 ?10.96.0.4", "10.96.0.1 10.96.0.4 10.96.0.5")
	// What is in use stays until it is not.
	h.used[netip.MustParseAddr("10.96.0.5")] = true
	step("10.96.0.1", "-10.96.0.4", "10.96.0.1 10.96.0.5")
	step("10.96.0.1 10.96.0.5", "", "10.96.0.1 10.96.0.5") // wanted again meanwhile
	step("10.96.0.1", "", "10.96.0.1 10.96.0.5")
	clear(h.used)
	if ok, err := a.Verify(t.Context()); !ok || err != nil || !slices.Equal(a.Held(), parse("10.96.0.1")) {
		t.Errorf("Verify = %v, %v, held %v", ok, err, a.Held())
	}
	// Somebody takes one away, and it comes back.
	delete(h.ours, netip.MustParseAddr("10.96.0.1"))
	if ok, err := a.Verify(t.Context()); ok || err != nil {
		t.Errorf("Verify = %v, %v, want false", ok, err)
	}
	step("10.96.0.1", "+10.96.0.1 ?10.96.0.1", "10.96.0.1")
	step("", "-10.96.0.1", "")
}

func TestAddressesIPv6(t *testing.T) {
	h := newFakeHost(t)
	a := &Set{IPv6: true, sys: h}
	check(t, a.Sync(t.Context(), parse("10.96.0.1 ::1 :: 2001:db8::1 ::ffff:10.96.0.3")))
	if !slices.Equal(a.Held(), parse("2001:db8::1")) {
		t.Errorf("held are %v", a.Held())
	}
}

// onHost returns the addresses of one family that the host has and that are ours.
func onHost(t *testing.T, ipv6 bool) []netip.Addr { return addressesOf(t, ipv6, true) }

// addressesOf returns, of the addresses that tests use, those that are ours, or the others.
func addressesOf(t *testing.T, ipv6, ours bool) (out []netip.Addr) {
	t.Helper()
	all, err := host{}.list(ipv6)
	check(t, err)
	for _, at := range all {
		s := at.ip.String()
		if at.ours == ours && (strings.HasPrefix(s, "10.96.") || strings.HasPrefix(s, "2001:db8:96:")) {
			out = append(out, at.ip)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// hold has a Set hold addresses, and the host have these of ours.
func hold(t *testing.T, a *Set, want ...netip.Addr) {
	t.Helper()
	check(t, a.Sync(t.Context(), want))
	ours, others := onHost(t, a.IPv6), addressesOf(t, a.IPv6, false)
	if !slices.Equal(ours, want) || !slices.Equal(a.Held(), want) || len(others) > 0 {
		t.Fatalf("of ours the host has %v, not known as ours are %v, held are %v; want %v", ours, others, a.Held(), want)
	}
}

// listen opens a socket and closes it again: the address is ready to be listened on.
func listen(t *testing.T, network string, addr netip.AddrPort) {
	t.Helper()
	var c io.Closer
	var err error
	if network == "udp" {
		c, err = net.ListenPacket(network, addr.String())
	} else {
		c, err = net.Listen(network, addr.String())
	}
	check(t, err)
	check(t, c.Close())
}

// testOnHost gives the host addresses, of which sockets are on the first, and takes them away.
func testOnHost(t *testing.T, ipv6 bool, addrs []netip.Addr, networks ...string) {
	a := &Set{IPv6: ipv6}
	hold(t, a, addrs[0], addrs[1])
	for _, network := range networks { // ready at once
		listen(t, network, netip.AddrPortFrom(addrs[0], 0))
		listen(t, network, netip.AddrPortFrom(addrs[1], 0))
	}
	hold(t, a, addrs[1], addrs[2])
	// A process that was killed leaves two behind; the next wants one of them, and another.
	hold(t, &Set{IPv6: ipv6}, addrs[0], addrs[2])
	for range 2 {
		check(t, Cleanup(t.Context()))
		if ours := onHost(t, ipv6); len(ours) > 0 {
			t.Errorf("after the cleanup the host has %v", ours)
		}
	}
}
