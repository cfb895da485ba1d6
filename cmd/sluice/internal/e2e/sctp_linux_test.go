package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// sctpEnds is SCTP at the ends of associations: the kernel's own, or in user space
// where it has none.
type sctpEnds struct {
	engine, why string // that Sluice uses there
	echoPort    int
	echo        func(t *testing.T, h *testbed.Host) // starts a server that echoes
	open        func(from *testbed.Host, addr netip.AddrPort) (sctpClient, error)
	onNode      bool // clients may be on the node
	perHost     int  // clients at once on a host
}

// sctpClient is an association with a server that echoes.
type sctpClient interface {
	ask(line string) error // sends a line and waits for its echo
	abandon()              // an association that may be dead, which to end properly takes minutes
	close()
}

// ask sends a line by an association of its own and waits for its echo.
func (e *sctpEnds) ask(from *testbed.Host, addr netip.AddrPort, line string) error {
	c, err := e.open(from, addr)
	if err != nil {
		return err
	}
	defer c.close()
	return c.ask(line)
}

// Programs of usrsctp: one that echoes at port 7, and one that sends its input in
// lines and prints what comes back. On the node they would take each packet of
// Sluice's for one of theirs, and abort.
const (
	usrsctpEcho   = "/usr/lib/usrsctp/echo_server"
	usrsctpClient = "/usr/lib/usrsctp/client"
)

func newSCTPEnds(t *testing.T) sctpEnds {
	t.Helper()
	ends, err := findSCTPEnds()
	if err != nil {
		testbed.Missing(t, err.Error())
	}
	return ends
}

// findSCTPEnds returns an error if nothing here speaks SCTP.
func findSCTPEnds() (sctpEnds, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err == nil {
		_ = unix.Close(fd)
		return sctpEnds{"socket", "the kernel has SCTP", 3868, kernelEcho, openKernel, true, 10}, nil
	}
	for _, name := range []string{usrsctpEcho, usrsctpClient} {
		if _, err := os.Stat(name); err != nil {
			return sctpEnds{}, err
		}
	}
	return sctpEnds{"packet", "the kernel has no SCTP", 7, usrsctpServe, openUsrsctp, false, 1}, nil
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

func openUsrsctp(from *testbed.Host, addr netip.AddrPort) (sctpClient, error) {
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

func (c *usrsctpProgram) ask(line string) error {
	if _, err := io.WriteString(c.feed, line+"\n"); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); !strings.Contains(c.out.String(), line); {
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

func (c *usrsctpProgram) close() {
	_ = c.feed.Close()
	<-c.ended
}

// abandon ends the program, and leaves to its server to find out.
func (c *usrsctpProgram) abandon() {
	_ = c.cmd.Process.Kill()
	c.close()
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

func openKernel(from *testbed.Host, addr netip.AddrPort) (sctpClient, error) {
	fd, err := kernelSocket(from, addr.Addr())
	if err != nil {
		return nil, err
	}
	c := &kernelClient{fd, addr}
	limit := unix.NsecToTimeval(int64(patience))
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit), connectKernel(fd, addr)); err != nil {
		c.close()
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
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(patience.Milliseconds()))
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

func (c *kernelClient) ask(line string) error {
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

func (c *kernelClient) abandon() { c.close() }

func (c *kernelClient) close() { _ = unix.Close(c.fd) }

// errAborted is an ABORT in place of an INIT ACK.
var errAborted = errors.New("aborted")

// refusedSCTP sends an INIT to addr and returns what the kernel says of it, or
// errAborted: nil if nothing, within a second.
func refusedSCTP(from *testbed.Host, addr netip.AddrPort) error {
	network := "ip4:132"
	if addr.Addr().Is6() {
		network = "ip6:132"
	}
	var c *net.IPConn
	err := from.Do(func() (err error) {
		c, err = net.DialIP(network, nil, &net.IPAddr{IP: addr.Addr().AsSlice()})
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	b := []byte{0x9c, 0x40, byte(addr.Port() >> 8), byte(addr.Port()), 0, 0, 0, 0, 0, 0, 0, 0,
		1, 0, 0, 20, 0, 0, 0, 9, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1}
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	b[8], b[9], b[10], b[11] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	if _, err := c.Write(b); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	answer := make([]byte, 1500)
	switch n, _, err := c.ReadFromIP(answer); { // without the header of IPv4
	case err == nil && n > 12 && answer[12] == 6: // the first chunk, after the common header (RFC 9260, section 3)
		return errAborted
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	return nil
}

const sctpService = `apiVersion: v1
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

// Every kind of address of an SCTP Service is served, and refuses without endpoints.
func TestSCTP(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"userspace", "winuserspace"} {
		t.Run(mode, func(t *testing.T) { testSCTP(t, mode) })
	}
}

func testSCTP(t *testing.T, mode string) {
	t.Parallel()
	ends := newSCTPEnds(t)
	l := newLab(t, testbed.Config{Pods: 2, Clients: 2})
	if mode == "winuserspace" {
		l.winuserspace()
	}
	server, pod := l.Pods[0], l.Pods[1]
	ends.echo(t, server)
	with := []string{sctpService, slice("sig", 1, ends.echoPort, "SCTP", server.Addr4.String()),
		strings.Replace(slice("sig", 6, ends.echoPort, "SCTP", `"`+server.Addr6.String()+`"`), "addressType: IPv4", "addressType: IPv6", 1)}
	l.write("sig.yaml", with...)
	l.start()
	if !strings.Contains(l.log.String(), fmt.Sprintf(`"engine": %q`, ends.engine)) {
		t.Errorf("the log does not tell the engine:\n%s", l.log.String())
	}
	all := []string{"10.96.0.38:3868", "[2001:db8:96::38]:3868", "198.51.100.38:3868", "203.0.113.38:3868",
		netip.AddrPortFrom(l.Node.Addr4, 30868).String(), netip.AddrPortFrom(l.Node.Alt4, 30868).String(),
		netip.AddrPortFrom(l.Node.Addr6, 30868).String()}
	from := []*testbed.Host{l.Client, pod}
	if ends.onNode {
		from = append(from, l.Node)
	}
	established := 0.0
	for _, from := range from {
		for _, addr := range all {
			if err := ends.ask(from, netip.MustParseAddrPort(addr), "hello from "+from.Name); err != nil {
				t.Errorf("%s: %v", from, err)
			}
			established++
		}
	}
	if got := l.metric(`sluice_sctp_associations_total{result="established"}`); got != established {
		t.Errorf("%v associations are counted, want %v", got, established)
	}
	l.metric(fmt.Sprintf("sluice_sctp_engine{engine=%q,reason=%q}", ends.engine, "detected"))
	out, err := l.command("explain", "--manifests", l.dir, "default/sig").CombinedOutput()
	if want := fmt.Sprintf("SCTP engine %s: %s\n", ends.engine, ends.why); err != nil || strings.Count(string(out), want) != 6 {
		t.Errorf("explain does not say %q of each address: %v\n%s", want, err, out)
	}

	l.write("sig.yaml", sctpService)
	l.eventually("the endpoints are gone", func() bool { return l.metric("sluice_backends") == 0 })
	for _, from := range from {
		for _, addr := range all {
			err := refusedSCTP(from, netip.MustParseAddrPort(addr))
			if mode == "winuserspace" { // who has the address answers, with an ABORT
				if !errors.Is(err, errAborted) {
					t.Errorf("%s asks %s without endpoints: %v, want an ABORT", from, addr, err)
				}
				continue
			}
			if onNode := from == l.Node && errors.Is(err, syscall.EPERM); !onNode && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s asks %s without endpoints: %v, want refused", from, addr, err)
			}
		}
	}

	l.write("sig.yaml", with...)
	l.eventually("the endpoints are back", func() bool { return l.metric("sluice_backends") == 2 })
	if err := ends.ask(l.Client, netip.MustParseAddrPort(all[0]), "again"); err != nil {
		t.Error(err)
	}
	l.signal(syscall.SIGTERM)
	if code := l.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// An engine that cannot be had ends the start, and says why.
func TestSCTPEngineForced(t *testing.T) {
	t.Parallel()
	ends := newSCTPEnds(t)
	other, why := "socket", "use SCTP sockets: the kernel has no SCTP"
	if ends.engine == "socket" {
		other, why = "packet", "use raw sockets for SCTP: the kernel has SCTP itself"
	}
	l := newLab(t, testbed.Config{})
	l.write("sig.yaml", sctpService)
	var out bytes.Buffer
	cmd := l.command("--manifests", l.dir, "--sctp-engine="+other)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); exitCode(err) == 0 || !strings.Contains(out.String(), "--sctp-engine="+other+": "+why) {
		t.Errorf("%v: %s", err, out.String())
	}
	explain := func() string {
		out, _ := l.command("explain", "--manifests", l.dir, "sctp", "10.96.0.38:3868").CombinedOutput()
		return string(out)
	}
	if out := explain(); !strings.Contains(out, "SCTP engine unknown, since the program does not answer") {
		t.Errorf("without a program explain says:\n%s", out)
	}
	l.start("--sctp-engine=" + ends.engine)
	if out := explain(); !strings.Contains(out, "SCTP engine "+ends.engine+": requested by --sctp-engine\n") {
		t.Errorf("explain says:\n%s", out)
	}
	l.metric(fmt.Sprintf("sluice_sctp_engine{engine=%q,reason=%q}", ends.engine, "requested"))
}

// Upgrades lose no association, no message and no client that is about to come, and the
// engine is the same afterwards.
func TestSCTPUpgrade(t *testing.T) {
	t.Parallel()
	ends := newSCTPEnds(t)
	upgrades := 4
	if testing.Short() { // as in a machine that is interpreted
		upgrades = 2
	}
	n := newLine(t, testbed.Config{Pods: 2, Clients: 3})
	for _, pod := range n.Pods {
		ends.echo(t, pod)
	}
	n.write("sig.yaml", sctpService, slice("sig", 1, ends.echoPort, "SCTP", addrs(n.Pods...)...))
	n.start()
	addr := netip.MustParseAddrPort("10.96.0.38:3868")
	stop := make(chan struct{})
	var all sync.WaitGroup
	var asked, opened atomic.Int64
	talk := func(who string, c sctpClient, most int) bool {
		for i := 0; i < most; i++ {
			select {
			case <-stop:
				return true
			default:
			}
			line := fmt.Sprintf("%s %d %s", who, i, strings.Repeat("x", i%1000))
			line = fmt.Sprintf("%s %08x", line, crc32.ChecksumIEEE([]byte(line)))
			if err := c.ask(line); err != nil {
				t.Errorf("%s: %v", who, err)
				return false
			}
			asked.Add(1)
		}
		return true
	}
	for _, from := range n.Clients[:2] { // they hold theirs throughout
		for i := range ends.perHost {
			c, err := ends.open(from, addr)
			if err != nil {
				t.Fatal(err)
			}
			opened.Add(1)
			all.Go(func() {
				defer c.close()
				talk(fmt.Sprintf("%s/%d", from.Name, i), c, math.MaxInt)
			})
		}
	}
	all.Go(func() { // one after the other
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			c, err := ends.open(n.Clients[2], addr)
			if err != nil {
				t.Error(err)
				return
			}
			opened.Add(1)
			ok := talk(fmt.Sprintf("new %d", i), c, 3)
			if c.close(); !ok {
				return
			}
		}
	})
	enough := func(what string) {
		from, first := opened.Load(), asked.Load()
		n.eventually(what, func() bool {
			return t.Failed() || opened.Load() > from+2 && asked.Load() > first+int64(20*ends.perHost)
		})
	}
	enough("associations are in use")
	for range upgrades {
		n.mustUpgrade()
		enough("associations go on after an upgrade")
	}
	close(stop)
	all.Wait()
	t.Logf("%d associations, %d messages each way through %d upgrades", opened.Load(), asked.Load(), upgrades)
	n.eventually("all have ended", func() bool { return n.metric("sluice_sctp_active_associations") == 0 })
	for _, reason := range []string{"backend", "expired", "evicted"} {
		if got := n.metric(fmt.Sprintf("sluice_sctp_associations_ended_total{reason=%q}", reason)); got != 0 {
			t.Errorf("%v associations have ended by reason %s", got, reason)
		}
	}
	// What went before the last upgrade is counted still.
	if got := n.metric(`sluice_sctp_associations_total{result="established"}`); got != float64(opened.Load()) {
		t.Errorf("%v associations are counted, want %d", got, opened.Load())
	}
	n.metric(fmt.Sprintf("sluice_sctp_engine{engine=%q,reason=%q}", ends.engine, "detected"))
	if got := strings.Count(n.logged(), fmt.Sprintf(`"engine": %q`, ends.engine)); got != upgrades+1 {
		t.Errorf("%d processes tell of the engine, want %d", got, upgrades+1)
	}
}
