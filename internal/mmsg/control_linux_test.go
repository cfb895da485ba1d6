package mmsg

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLocalAddrRoundTrip(t *testing.T) {
	for _, s := range []string{"192.0.2.7", "255.255.255.255", "2001:db8::7", "::1"} {
		want := netip.MustParseAddr(s)
		control := bytes.Repeat([]byte{0xff}, ControlSize)
		n := PutLocalAddr(control, want, 0)
		if got, ok := Control(control[:n]).LocalAddr(); !ok || got != want {
			t.Errorf("LocalAddr = %s, %v, want %s", got, ok, want)
		}
		// Others parse it the same way.
		messages, err := unix.ParseSocketControlMessage(control[:n])
		if err != nil || len(messages) != 1 {
			t.Errorf("%s: x/sys finds %v, %v", s, messages, err)
		}
		// After another message, and cut off.
		first := unix.UnixRights(3)
		if got, ok := Control(append(first, control[:n]...)).LocalAddr(); !ok || got != want {
			t.Errorf("LocalAddr after another message = %s, %v, want %s", got, ok, want)
		}
		for cut := range unix.SizeofCmsghdr + 12 {
			if got, ok := Control(control[:cut]).LocalAddr(); ok {
				t.Errorf("LocalAddr of %d bytes = %s, want none", cut, got)
			}
		}
	}
}

// FuzzControl has any bytes searched, and in good ones finds the first message that x/sys does.
func FuzzControl(f *testing.F) {
	control := make([]byte, ControlSize)
	for _, s := range []string{"192.0.2.7", "2001:db8::7"} {
		n := PutLocalAddr(control, netip.MustParseAddr(s), 0)
		f.Add(bytes.Clone(control[:n]))
		f.Add(append(unix.UnixRights(1, 2, 3), control[:n]...))
	}
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = Control(b).LocalAddr()
		_, _ = Control(b).QueuedError()
		_, _ = Control(b).SegmentSize(), Control(b).TrafficClass()
		_, _ = Control(b).Hops()
		_ = Control(b).HopsExceeded()
		theirs, err := unix.ParseSocketControlMessage(b)
		if err != nil || len(theirs) == 0 {
			return
		}
		first := theirs[0]
		if got := Control(b).Find(first.Header.Level, first.Header.Type, 0); !bytes.Equal(got, first.Data) {
			t.Fatalf("found %x, x/sys finds %x", got, first.Data)
		}
	})
}

// TestSegmentSize: the kernel's message is found after another and as the only one, beside
// the longest that a datagram comes with.
func TestSegmentSize(t *testing.T) {
	control := make([]byte, 2*ControlSize)
	n := PutLocalAddr(control, netip.MustParseAddr("2001:db8::7"), 0)
	data, more := Put(control[n:], unix.SOL_UDP, unix.UDP_GRO, 4)
	binary.NativeEndian.PutUint32(data, 1200)
	data, hops := Put(control[n+more:], unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, 4)
	binary.NativeEndian.PutUint32(data, 63)
	if n+more+hops > ControlSize {
		t.Errorf("%d bytes of control messages, there is room for %d", n+more+hops, ControlSize)
	}
	if got, ok := Control(control[:n+more+hops]).Hops(); !ok || got != 63 {
		t.Errorf("Hops = %d, %v, want 63", got, ok)
	}
	if got, ok := Control(control[:n+more]).Hops(); ok {
		t.Errorf("Hops = %d, want none", got)
	}
	if got := Control(control[:n+more]).SegmentSize(); got != 1200 {
		t.Errorf("SegmentSize = %d, want 1200", got)
	}
	if got := Control(control[n : n+more]).SegmentSize(); got != 1200 {
		t.Errorf("SegmentSize alone = %d, want 1200", got)
	}
	if got := Control(control[:n]).SegmentSize(); got != 0 {
		t.Errorf("SegmentSize of a datagram = %d, want 0", got)
	}
	swapped := Control(append(slices.Clone(control[n:n+more]), control[:n]...))
	if addr, ok := swapped.LocalAddr(); !ok || addr != netip.MustParseAddr("2001:db8::7") {
		t.Errorf("LocalAddr after it = %s, %v", addr, ok)
	}
}
