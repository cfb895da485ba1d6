package tcp

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

// TestMoveHeader: a header that is out in part goes on where it was, byte by byte of it, before what the client sends,
// and is not counted: also if the backend takes nothing for a while.
func TestMoveHeader(t *testing.T) {
	header := []byte("PROXY TCP4 192.0.2.1 10.96.0.1 1 80\r\n")
	for at := 0; at <= len(header); at += 6 {
		p := startProxy(t, nil)
		clients, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		defer clients.Close()
		client, ours := pair(t, clients)
		backend, theirs := pair(t, clients)
		p.announced(1, netip.MustParseAddrPort(theirs.LocalAddr().String()))
		check(t, theirs.SetWriteBuffer(4<<10))
		_, err = theirs.Write(header[:at])
		check(t, err)
		to := descriptor(t, theirs)
		full := fill(to)
		waiting := bytes.Clone(header[at:])
		check(t, p.Adopt([]Frozen{{Client: descriptor(t, ours), Backend: to,
			Service: lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP},
			Addr:    p.LB.Table().At(0).Backends[0].Addr, ToBackend: Way{Waiting: waiting},
			Header: uint16(len(waiting))}}, func() {}))
		_, err = io.WriteString(client, "ping")
		check(t, err)
		check(t, client.CloseWrite())
		got, err := io.ReadAll(backend)
		check(t, err)
		if want := string(header[:at]) + string(make([]byte, full)) + string(header[at:]) +
			"ping"; string(got) != want {
			t.Errorf("from byte %d on: %d bytes arrive, want %d", at, len(got), len(want))
		}
		_ = backend.Close()
		p.eventually("the connection has ended", func(s Stats) bool { return s.Active == 0 })
		if s := p.Stats(); s.BytesIn != 4 {
			t.Errorf("%d bytes in, want 4", s.BytesIn)
		}
	}
}

// pair returns both ends of a connection.
func pair(t *testing.T, l net.Listener) (a, b *net.TCPConn) {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	s, err := l.Accept()
	check(t, err)
	for _, c := range []net.Conn{c, s} {
		t.Cleanup(func() { _ = c.Close() })
		check(t, c.SetDeadline(time.Now().Add(patience)))
	}
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// descriptor returns a copy of a connection's descriptor, and closes the connection's own.
func descriptor(t *testing.T, c *net.TCPConn) (fd int) {
	t.Helper()
	raw, err := c.SyscallConn()
	check(t, err)
	check(t, raw.Control(func(own uintptr) { fd = dup(t, int(own)) }))
	_ = c.Close()
	return fd
}

// fill sends zeroes until the socket takes no more.
func fill(fd int) (sent int) {
	for {
		n, err := unix.Write(fd, make([]byte, 1000))
		if err != nil {
			return sent
		}
		sent += n
	}
}

// TestMoveAnnounced: a connection whose backend has accepted, which the Server that has halted has not noticed, is
// announced by its successor, once.
func TestMoveAnnounced(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	p := startProxy(t, patient)
	p.announced(1, netip.MustParseAddrPort(l.Addr().String()))
	for _, dialling := range []bool{true, false} {
		release := func() {}
		if dialling {
			release = p.block()
		}
		before := p.Stats().Established
		c := p.dial()
		if !dialling {
			p.eventually("the backend has accepted", func(s Stats) bool { return s.Established > before })
		}
		next := p.successor(2)
		release()
		p.moveTo(next)
		server, err := l.Accept()
		check(t, err)
		defer server.Close()
		_ = server.SetDeadline(time.Now().Add(patience))
		r := bufio.NewReader(server)
		src, dst, _, err := announcedOf(r)
		if err != nil || src != c.LocalAddr().String() || dst != frontend.String() {
			t.Fatalf("announced %s, %s, %v", src, dst, err)
		}
		_, err = io.WriteString(c, "ping")
		check(t, err)
		check(t, c.CloseWrite())
		if got, err := io.ReadAll(r); err != nil || string(got) != "ping" {
			t.Errorf("%q behind the header, %v", got, err)
		}
		_ = server.Close()
		next.eventually("the connection has ended", func(s Stats) bool { return s.Active == 0 })
		p = next
	}
}
