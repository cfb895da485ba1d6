package testbed

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// SCTPSocket is a one-to-one socket of the kernel's SCTP on a host, used as a stream of bytes,
// like one of TCP (RFC 6458, section 4). The caller closes it.
type SCTPSocket struct{ fd int }

// HasSCTP reports whether the kernel has SCTP.
func HasSCTP() bool {
	s, err := newSCTP(netip.IPv4Unspecified())
	if err == nil {
		s.Close()
	}
	return err == nil
}

func newSCTP(ip netip.Addr) (SCTPSocket, error) {
	family := unix.AF_INET
	if ip.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	return SCTPSocket{fd}, err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// ListenSCTP listens on the host, without a limit of time.
func (h *Host) ListenSCTP(at netip.AddrPort) (s SCTPSocket, err error) {
	if err = h.Do(func() (err error) { s, err = newSCTP(at.Addr()); return err }); err != nil {
		return s, fmt.Errorf("listen at %s on host %s: %w", at, h.Name, err)
	}
	if err = errors.Join(unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(s.fd, sockaddr(at)), unix.Listen(s.fd, 16)); err != nil {
		s.Close()
		return s, fmt.Errorf("listen at %s on host %s: %w", at, h.Name, err)
	}
	return s, nil
}

// DialSCTP connects from the host, by the address and port from alone if they are valid. This and
// each later call takes at most the given time.
func (h *Host) DialSCTP(from, to netip.AddrPort, within time.Duration) (s SCTPSocket, err error) {
	if err = h.Do(func() (err error) { s, err = newSCTP(to.Addr()); return err }); err != nil {
		return s, fmt.Errorf("connect host %s to %s: %w", h.Name, to, err)
	}
	if err = s.SetTimeout(within); err == nil && from.IsValid() {
		err = unix.Bind(s.fd, sockaddr(from))
	}
	if err == nil {
		err = s.connect(to, within)
	}
	if err != nil {
		s.Close()
		return s, fmt.Errorf("connect host %s to %s: %w", h.Name, to, err)
	}
	return s, nil
}

// connect connects, also if a signal of Go's runtime ends the wait: with a timeout no
// system call is restarted (signal(7)).
func (s SCTPSocket) connect(to netip.AddrPort, within time.Duration) error {
	for {
		switch err := unix.Connect(s.fd, sockaddr(to)); err {
		case unix.EINTR, unix.EALREADY:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, int(within.Milliseconds()))
		case unix.EISCONN:
			return nil
		default:
			return err
		}
	}
}

// uninterrupted calls again what a signal has ended.
func uninterrupted(call func() (int, error)) (n int, err error) {
	for n, err = call(); err == unix.EINTR; {
		n, err = call()
	}
	return max(n, 0), err
}

// SetTimeout bounds the time of each call.
func (s SCTPSocket) SetTimeout(d time.Duration) error {
	limit := unix.NsecToTimeval(int64(d))
	return errors.Join(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
}

// Accept takes a connection, which has no limit of time.
func (s SCTPSocket) Accept() (SCTPSocket, error) {
	fd, err := uninterrupted(func() (int, error) {
		fd, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC)
		return fd, err
	})
	return SCTPSocket{fd}, err
}

// Serve accepts connections in a goroutine, and serves each in one of its own, until stop is
// called, which ends and joins them and closes the socket.
func (s SCTPSocket) Serve(serve func(SCTPSocket)) (stop func(), err error) {
	wake, end, err := os.Pipe() // shutdown(2) does not end accept here, as it does with TCP
	if err != nil {
		return nil, err
	}
	var accepting, serving sync.WaitGroup
	var conns []SCTPSocket
	accepting.Go(func() {
		fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}, {Fd: int32(wake.Fd()), Events: unix.POLLIN}}
		for {
			_, err := uninterrupted(func() (int, error) { return unix.Poll(fds, -1) })
			if err != nil || fds[1].Revents != 0 {
				return
			}
			c, err := s.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
			serving.Go(func() {
				serve(c)
				_ = c.CloseWrite()
			})
		}
	})
	return func() {
		_ = end.Close()
		accepting.Wait()
		for _, c := range conns {
			_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
		}
		serving.Wait()
		for _, c := range append(conns, s) {
			c.Close()
		}
		_ = wake.Close()
	}, nil
}

func (s SCTPSocket) Read(b []byte) (int, error) {
	n, err := uninterrupted(func() (int, error) { return unix.Read(s.fd, b) })
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

func (s SCTPSocket) Write(b []byte) (int, error) {
	return uninterrupted(func() (int, error) { return unix.Write(s.fd, b) })
}

// CloseWrite ends the association once all that was written has arrived.
func (s SCTPSocket) CloseWrite() error { return unix.Shutdown(s.fd, unix.SHUT_WR) }

// Abort ends the association without waiting for the other end.
func (s SCTPSocket) Abort() {
	_ = unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	s.Close()
}

// Close closes the socket.
func (s SCTPSocket) Close() { _ = unix.Close(s.fd) }
