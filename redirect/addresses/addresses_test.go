package addresses

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
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

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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
