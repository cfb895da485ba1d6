package udp

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
		control := bytes.Repeat([]byte{0xff}, controlSize)
		n := putLocalAddr(control, want)
		if got, ok := localAddr(control[:n]); !ok || got != want {
			t.Errorf("localAddr = %s, %v, want %s", got, ok, want)
		}
		// Others parse it the same way.
		messages, err := unix.ParseSocketControlMessage(control[:n])
		if err != nil || len(messages) != 1 {
			t.Errorf("%s: x/sys finds %v, %v", s, messages, err)
		}
		// After another message, and cut off.
		first := unix.UnixRights(3)
		if got, ok := localAddr(append(first, control[:n]...)); !ok || got != want {
			t.Errorf("localAddr after another message = %s, %v, want %s", got, ok, want)
		}
		for cut := range unix.SizeofCmsghdr + 12 {
			if got, ok := localAddr(control[:cut]); ok {
				t.Errorf("localAddr of %d bytes = %s, want none", cut, got)
			}
		}
	}
}

// FuzzControl holds nextControl to what it may return, and to what x/sys makes of
// the same bytes.
func FuzzControl(f *testing.F) {
	control := make([]byte, controlSize)
	for _, s := range []string{"192.0.2.7", "2001:db8::7"} {
		n := putLocalAddr(control, netip.MustParseAddr(s))
		f.Add(bytes.Clone(control[:n]))
		f.Add(append(unix.UnixRights(1, 2, 3), control[:n]...))
	}
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = localAddr(b)
		_ = queuedError(b)
		_ = segmentSize(b)
		theirs, err := unix.ParseSocketControlMessage(b)
		left := b
		for i := 0; ; i++ {
			m, rest, ok := nextControl(left)
			if !ok {
				if err == nil && i != len(theirs) {
					t.Fatalf("%d messages, x/sys finds %d", i, len(theirs))
				}
				return
			}
			if len(rest) >= len(left) {
				t.Fatal("no progress")
			}
			if err == nil && (m.level != theirs[i].Header.Level || m.kind != theirs[i].Header.Type || !bytes.Equal(m.data, theirs[i].Data)) {
				t.Fatalf("message %d = %+v, x/sys finds %+v", i, m, theirs[i])
			}
			left = rest
		}
	})
}

// TestSegmentSize: the kernel's message is found after another and as the only one, beside
// the longest that a datagram comes with.
func TestSegmentSize(t *testing.T) {
	control := make([]byte, 2*controlSize)
	n := putLocalAddr(control, netip.MustParseAddr("2001:db8::7"))
	data, more := putControl(control[n:], unix.SOL_UDP, unix.UDP_GRO, 4)
	binary.NativeEndian.PutUint32(data, 1200)
	if n+more > controlSize {
		t.Errorf("%d bytes of control messages, there is room for %d", n+more, controlSize)
	}
	if got := segmentSize(control[:n+more]); got != 1200 {
		t.Errorf("segmentSize = %d, want 1200", got)
	}
	if got := segmentSize(control[n : n+more]); got != 1200 {
		t.Errorf("segmentSize alone = %d, want 1200", got)
	}
	if got := segmentSize(control[:n]); got != 0 {
		t.Errorf("segmentSize of a datagram = %d, want 0", got)
	}
	if addr, ok := localAddr(append(slices.Clone(control[n:n+more]), control[:n]...)); !ok || addr != netip.MustParseAddr("2001:db8::7") {
		t.Errorf("localAddr after it = %s, %v", addr, ok)
	}
}
