package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// ends is SCTP at both ends of an association.
type ends struct {
	name   string
	engine string // that Sluice uses on this kernel
	// serve takes messages of a size until done is called.
	serve func(ctx context.Context, h *testbed.Host, at netip.AddrPort, size int) (done func(), err error)
	// send sends messages and waits until all have arrived.
	send func(ctx context.Context, h *testbed.Host, to netip.AddrPort, size, n int) error
}

// newEnds chooses the kernel's SCTP if it has one.
func newEnds() ends {
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); err == nil {
		_ = unix.Close(fd)
		return ends{"the kernel's SCTP", "socket", serveKernel, sendKernel}
	}
	return ends{"usrsctp", "packet", serveTsctp, sendTsctp}
}

const tsctp = "/usr/lib/usrsctp/tsctp"

func serveTsctp(ctx context.Context, h *testbed.Host, at netip.AddrPort, size int) (func(), error) {
	cmd := h.Command(ctx, tsctp, "-E", "0", "-p", fmt.Sprint(at.Port()), "-L", at.Addr().String(), "-l", fmt.Sprint(size))
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}, nil
}

func sendTsctp(ctx context.Context, h *testbed.Host, to netip.AddrPort, size, n int) error {
	out, err := h.Command(ctx, tsctp, "-E", "0", "-U", "0", "-p", fmt.Sprint(to.Port()), "-n", fmt.Sprint(n), "-l", fmt.Sprint(size),
		"-L", h.Addr4.String(), to.Addr().String()).CombinedOutput()
	if err != nil {
		said := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("tsctp: %w: %s", err, said[len(said)-1])
	}
	return nil
}

// socketOn makes an SCTP socket on a host.
func socketOn(h *testbed.Host) (fd int, err error) {
	err = h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		return err
	})
	return fd, err
}

func sockaddr(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

func serveKernel(_ context.Context, h *testbed.Host, at netip.AddrPort, size int) (func(), error) {
	fd, err := socketOn(h)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, sockaddr(at)), unix.Listen(fd, 1)); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, _, err := unix.Accept(fd)
		if err != nil {
			return
		}
		buf := make([]byte, size)
		for {
			if n, err := unix.Read(c, buf); err != nil || n == 0 {
				break
			}
		}
		_ = unix.Close(c)
	}()
	return func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // wakes accept
		<-ended
		_ = unix.Close(fd)
	}, nil
}

func sendKernel(_ context.Context, h *testbed.Host, to netip.AddrPort, size, n int) error {
	fd, err := socketOn(h)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	limit := unix.NsecToTimeval(int64(timeout))
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.Bind(fd, sockaddr(netip.AddrPortFrom(h.Addr4, 0))), connect(fd, to)); err != nil {
		return err
	}
	message := make([]byte, size)
	for range n {
		if err := uninterrupted(func() error { _, err := unix.Write(fd, message); return err }); err != nil {
			return err
		}
	}
	// Everything has arrived when the shutdown is through: then there is nothing to read.
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return err
	}
	err = uninterrupted(func() error { _, err := unix.Read(fd, message); return err })
	if err == unix.ENOTCONN {
		return nil
	}
	return err
}

// connect connects, also if a signal of Go's runtime ends the wait: with a timeout no
// system call is restarted (signal(7)).
func connect(fd int, to netip.AddrPort) error {
	for {
		switch err := unix.Connect(fd, sockaddr(to)); err {
		case unix.EINTR, unix.EALREADY:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(timeout.Milliseconds()))
		case unix.EISCONN:
			return nil
		default:
			return err
		}
	}
}

// uninterrupted calls again what a signal has ended.
func uninterrupted(call func() error) (err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		err = call()
	}
	return err
}
