package mmsg

import (
	"bytes"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
)

// bound returns a UDP socket of the loopback interface.
func bound(t *testing.T) (fd int, addr netip.AddrPort) {
	t.Helper()
	local := netip.MustParseAddrPort("127.0.0.1:0")
	fd, err := socket.New(local.Addr(), unix.SOCK_DGRAM, 0)
	if err == nil {
		err = socket.Bind(fd, local)
	}
	if err == nil {
		addr, err = socket.Local(fd)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd, addr
}

// TestSendAndRead sends more than a batch and reads it, without an allocation.
func TestSendAndRead(t *testing.T) {
	from, client := bound(t)
	to, server := bound(t)
	if err := unix.SetsockoptInt(to, unix.IPPROTO_IP, unix.IP_PKTINFO, 1); err != nil {
		t.Fatal(err)
	}
	const size, long = 100, 3
	var (
		headers [Slots + 5]unix.Mmsghdr
		vectors [len(headers)]unix.Iovec
		control ControlBuffer
		name    socket.Name
	)
	name.Set(server)
	length := PutLocalAddr(control[:], client.Addr(), 0)
	length += PutTrafficClass(control[length:], 0x2e<<2, false)
	for i := range headers {
		p := bytes.Repeat([]byte{byte(i)}, i)
		if i == long {
			p = make([]byte, size+1)
		}
		vectors[i].Base = unsafe.SliceData(p)
		vectors[i].SetLen(len(p))
		headers[i].Hdr.Iov = &vectors[i]
		headers[i].Hdr.SetIovlen(1)
		Address(&headers[i].Hdr, &name, &control, length)
	}
	r := NewReader(size)
	check := func(first, n int, err error) {
		t.Helper()
		if want := min(Slots, len(headers)-first); err != nil || n != want || r.Len() != want {
			t.Fatalf("Read = %d, %v, want %d", n, err, want)
		}
		for i := range n {
			whole := bytes.Equal(r.Payload(i), bytes.Repeat([]byte{byte(first + i)}, first+i))
			if cut := first+i == long; r.Truncated(i) != cut || whole == cut {
				t.Errorf("message %d has %d bytes, truncated: %v", first+i, len(r.Payload(i)), r.Truncated(i))
			}
			if local, ok := r.Control(i).LocalAddr(); !ok || local != server.Addr() || r.Name(i).AddrPort() != client {
				t.Errorf("message %d is from %s to %s, %v", first+i, r.Name(i).AddrPort(), local, ok)
			}
		}
	}
	exchange := func(check func(first, n int, err error)) {
		if n, err := Send(from, headers[:]); n != len(headers) || err != nil {
			t.Fatalf("Send = %d, %v, want %d", n, err, len(headers))
		}
		for first := 0; first < len(headers); first += Slots {
			n, err := r.Read(to, 0)
			check(first, n, err)
		}
		if n, err := r.Read(to, 0); n != 0 || err != unix.EAGAIN {
			t.Fatalf("Read of an empty socket = %d, %v", n, err)
		}
	}
	exchange(check)
	if n := testing.AllocsPerRun(10, func() { exchange(func(int, int, error) {}) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestQueuedError: a socket that no process has refuses, which its sender reads from the error
// queue, with what was sent.
func TestQueuedError(t *testing.T) {
	gone, server := bound(t)
	_ = unix.Close(gone)
	fd, _ := bound(t)
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1); err != nil {
		t.Fatal(err)
	}
	if err := socket.Connect(fd, server); err != nil {
		t.Fatal(err)
	}
	if _, err := socket.Send(fd, []byte("question")); err != nil {
		t.Fatal(err)
	}
	r := NewReader(100)
	n, err := r.Read(fd, unix.MSG_ERRQUEUE)
	if n != 1 || err != nil || string(r.Payload(0)) != "question" || r.Name(0).AddrPort() != server {
		t.Fatalf("the error queue has %d messages, %v", n, err)
	}
	if errno, icmp := r.Control(0).QueuedError(); errno != unix.ECONNREFUSED || !icmp {
		t.Errorf("QueuedError = %v, %v; want a refusal reported by ICMP", errno, icmp)
	}
	if errno, _ := Control(nil).QueuedError(); errno != 0 {
		t.Errorf("QueuedError of no control message = %v", errno)
	}
}
