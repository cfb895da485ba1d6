package tcp

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A reset that no read can meet reaches the other side: the client's stream has ended before, or the backend
// takes nothing, so that the client is not read.
func TestResetThatIsNotRead(t *testing.T) {
	t.Run("behind the end of the stream", func(t *testing.T) {
		asked, seen := make(chan struct{}), make(chan error, 1)
		p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
			_, _ = io.Copy(io.Discard, plain{c})
			close(asked)
			seen <- awaitError(t, c)
		}))
		c := p.dial()
		if _, err := io.WriteString(c, "question"); err != nil {
			t.Fatal(err)
		}
		check(t, c.CloseWrite())
		<-asked
		expectResetAt(t, p, c, seen)
	})
	t.Run("behind a stalled reader", func(t *testing.T) {
		seen := make(chan error, 1)
		p := startProxy(t, nil, backend(t, func(c *net.TCPConn) { seen <- awaitError(t, c) }))
		c := p.dial()
		stall(t, c)
		expectResetAt(t, p, c, seen)
	})
}

// expectResetAt resets c and wants the backend to see that.
func expectResetAt(t *testing.T, p *proxy, c *net.TCPConn, seen <-chan error) {
	t.Helper()
	_ = c.SetLinger(0)
	_ = c.Close()
	if err := <-seen; err != unix.ECONNRESET && err != unix.EPIPE { // EPIPE: its own stream had an end (tcp_reset)
		t.Errorf("the backend saw %v, want a reset; stats %+v", err, p.Stats())
	}
	p.eventually("the reset is counted once", func(s Stats) bool { return s.Active == 0 && s.ClientResets == 1 && s.BackendResets == 0 })
}

// awaitError waits for an error of a socket without reading from it, and returns the error.
func awaitError(t *testing.T, c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var errno int
	if e := raw.Control(func(fd uintptr) {
		for end := time.Now().Add(patience); err == nil || err == unix.EINTR; {
			var n int
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, int(time.Until(end).Milliseconds())) // errors only
			if n > 0 || time.Now().After(end) {
				errno, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
				return
			}
		}
	}); e != nil || err != nil {
		t.Error(e, err)
	}
	return unix.Errno(errno)
}
