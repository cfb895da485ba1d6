package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// SCTPEnds is SCTP at the ends of associations: the kernel's own, or in user space
// where it has none.
type SCTPEnds struct {
	Engine, Why string // that Sluice uses there
	EchoPort    int
	Echo        func(t *testing.T, h *testbed.Host) // starts a server that echoes
	Open        func(from *testbed.Host, addr netip.AddrPort) (SCTPClient, error)
	OnNode      bool // clients may be on the node
	PerHost     int  // clients at once on a host
}

// SCTPClient is an association with a server that echoes.
type SCTPClient interface {
	Ask(line string) error // sends a line and waits for its echo
	Abandon()              // an association that may be dead, which to end properly takes minutes
	Close()
}

// Ask sends a line by an association of its own and waits for its echo.
func (e *SCTPEnds) Ask(from *testbed.Host, addr netip.AddrPort, line string) error {
	c, err := e.Open(from, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Ask(line)
}

// Programs of usrsctp: one that echoes at port 7, and one that sends its input in
// lines and prints what comes back. On the node they would take each packet of
// Sluice's for one of theirs, and abort.
const (
	usrsctpEcho   = "/usr/lib/usrsctp/echo_server"
	usrsctpClient = "/usr/lib/usrsctp/client"
)

// NewSCTPEnds returns the SCTP that this kernel allows at both ends of an association.
func NewSCTPEnds(t *testing.T) SCTPEnds {
	t.Helper()
	ends, err := FindSCTPEnds()
	if err != nil {
		testbed.Missing(t, err.Error())
	}
	return ends
}

// FindSCTPEnds returns an error if nothing here speaks SCTP.
func FindSCTPEnds() (SCTPEnds, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err == nil {
		_ = unix.Close(fd)
		return SCTPEnds{"socket", "the kernel has SCTP", 3868, kernelEcho, openKernel, true, 10}, nil
	}
	for _, name := range []string{usrsctpEcho, usrsctpClient} {
		if _, err := os.Stat(name); err != nil {
			return SCTPEnds{}, err
		}
	}
	return SCTPEnds{"packet", "the kernel has no SCTP", 7, usrsctpServe, openUsrsctp, false, 1}, nil
}

func usrsctpServe(t *testing.T, h *testbed.Host) {
	cmd := h.Command(context.Background(), usrsctpEcho)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
}

// usrsctpProgram is a client of usrsctp. It never says that it is connected, and ends
// with its input.
type usrsctpProgram struct {
	cmd   *testbed.Cmd
	to    netip.AddrPort
	feed  io.WriteCloser
	out   testbed.Buffer
	ended chan error
}

func openUsrsctp(from *testbed.Host, addr netip.AddrPort) (SCTPClient, error) {
	cmd := from.Command(context.Background(), usrsctpClient, addr.Addr().String(), fmt.Sprint(addr.Port()))
	in, feed := io.Pipe()
	c := &usrsctpProgram{cmd: cmd, to: addr, feed: feed, ended: make(chan error, 1)}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &c.out, &c.out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { c.ended <- cmd.Wait() }()
	return c, nil
}

func (c *usrsctpProgram) Ask(line string) error {
	if _, err := io.WriteString(c.feed, line+"\n"); err != nil {
		return err
	}
	for deadline := time.Now().Add(testbed.Patience); !strings.Contains(c.out.String(), line); {
		select {
		case err := <-c.ended:
			c.ended <- err
			return fmt.Errorf("no echo of %q from %s: %w: %s", line, c.to, err, c.out.String())
		case <-time.After(5 * time.Millisecond): // a pause between two looks
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no echo of %q from %s: %s", line, c.to, c.out.String())
		}
	}
	return nil
}

func (c *usrsctpProgram) Close() {
	_ = c.feed.Close()
	<-c.ended
}

// Abandon ends the program, and leaves to its server to find out.
func (c *usrsctpProgram) Abandon() {
	_ = c.cmd.Process.Kill()
	c.Close()
}

// kernelSocket makes an SCTP socket on a host, of the family of addr. As a stream
// of bytes it is used like one of TCP.
func kernelSocket(h *testbed.Host, addr netip.Addr) (fd int, err error) {
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	err = h.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		return err
	})
	return fd, err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func kernelEcho(t *testing.T, h *testbed.Host) {
	for _, addr := range []netip.Addr{h.Addr4, h.Addr6} {
		fd, err := kernelSocket(h, addr)
		if err == nil {
			err = errors.Join(unix.Bind(fd, sockaddr(netip.AddrPortFrom(addr, 3868))), unix.Listen(fd, 16))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR); _ = unix.Close(fd) })
		go func() {
			for {
				c, _, err := unix.Accept(fd)
				if err != nil {
					return
				}
				go func() {
					buf := make([]byte, 1500)
					for {
						n, err := unix.Read(c, buf)
						if err != nil || n == 0 {
							break
						}
						_, _ = unix.Write(c, buf[:n])
					}
					_ = unix.Close(c)
				}()
			}
		}()
	}
}

// kernelClient is a socket of the kernel.
type kernelClient struct {
	fd int
	to netip.AddrPort
}

func openKernel(from *testbed.Host, addr netip.AddrPort) (SCTPClient, error) {
	fd, err := kernelSocket(from, addr.Addr())
	if err != nil {
		return nil, err
	}
	c := &kernelClient{fd, addr}
	limit := unix.NsecToTimeval(int64(testbed.Patience))
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit), connectKernel(fd, addr)); err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return c, nil
}

// connectKernel connects, also if a signal of Go's runtime ends the wait: with a timeout
// no system call is restarted (signal(7)).
func connectKernel(fd int, addr netip.AddrPort) error {
	for {
		switch err := unix.Connect(fd, sockaddr(addr)); err {
		case unix.EINTR, unix.EALREADY:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(testbed.Patience.Milliseconds()))
		case unix.EISCONN:
			return nil
		default:
			return err
		}
	}
}

// uninterrupted calls again what a signal has ended.
func uninterrupted(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); err != unix.EINTR {
			return n, err
		}
	}
}

func (c *kernelClient) Ask(line string) error {
	if _, err := uninterrupted(func() (int, error) { return unix.Write(c.fd, []byte(line)) }); err != nil {
		return fmt.Errorf("ask %s: %w", c.to, err)
	}
	buf := make([]byte, 1500)
	n, err := uninterrupted(func() (int, error) { return unix.Read(c.fd, buf) })
	if err != nil || string(buf[:n]) != line {
		return fmt.Errorf("%s answers %q to %q: %w", c.to, buf[:max(n, 0)], line, err)
	}
	return nil
}

func (c *kernelClient) Abandon() { c.Close() }

func (c *kernelClient) Close() { _ = unix.Close(c.fd) }

// SCTPService is the manifest of a Service with SCTP.
const SCTPService = `apiVersion: v1
kind: Service
metadata:
  name: sig
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.38
  clusterIPs: [10.96.0.38, "2001:db8:96::38"]
  ipFamilies: [IPv4, IPv6]
  externalIPs: [198.51.100.38]
  ports:
  - port: 3868
    protocol: SCTP
    nodePort: 30868
status:
  loadBalancer:
    ingress:
    - ip: 203.0.113.38
`
