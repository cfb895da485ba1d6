package e2e

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

const (
	earlyAddr     = "10.96.0.90:80"
	earlyExternal = "198.51.100.90:80"
)

// earlyService is the manifest of a Service that is asked before it is there.
var earlyService = testbed.ServiceManifest("early", earlyAddr, "TCP", "  externalIPs: [198.51.100.90]\n")

// tracked returns how many entries the node's conntrack has for what was sent to addr and
// is not translated. The reader of entries knows no ports of SCTP: they are 0.
func tracked(l *lab.Lab, protocol uint8, addr string) (n int) {
	l.T.Helper()
	return trackedAt(l, protocol, addr, netip.MustParseAddrPort(addr).Addr())
}

// trackedAt is tracked for what is answered from an address.
func trackedAt(l *lab.Lab, protocol uint8, addr string, at netip.Addr) (n int) {
	l.T.Helper()
	err := l.Node.Do(func() error {
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		for _, f := range list {
			to, _ := netip.AddrFromSlice(f.Forward.DstIP)
			if f.Forward.Protocol == protocol && netip.AddrPortFrom(to, f.Forward.DstPort).String() == addr && f.Reverse.SrcIP.Equal(at.AsSlice()) {
				n++
			}
		}
		return err
	})
	if err != nil {
		l.T.Fatal(err)
	}
	return n
}

// askEarly has hosts connect to addresses that nobody serves yet, and returns when the
// kernel tracks it all. What it returns waits until each has been answered.
func askEarly(l *lab.Lab, from []*testbed.Host, addresses ...string) (answered func()) {
	l.T.Helper()
	answered = ask(l, from, addresses...)
	for _, addr := range addresses {
		l.Eventually("every SYN is in conntrack", func() bool { return tracked(l, unix.IPPROTO_TCP, addr) == len(from) })
	}
	return answered
}

// ask has hosts connect to addresses. What it returns waits until each has been answered.
func ask(l *lab.Lab, from []*testbed.Host, addresses ...string) (answered func()) {
	failed := make(chan error)
	for _, h := range from {
		for _, addr := range addresses {
			go func() {
				name, err := h.Who(addr)
				if err != nil {
					err = fmt.Errorf("%s asks %s: %q, %w", h, addr, name, err)
				}
				failed <- err
			}()
		}
	}
	return func() {
		l.T.Helper()
		for range len(from) * len(addresses) {
			if err := <-failed; err != nil {
				l.T.Error(err)
			}
		}
	}
}

// TestAskedTooEarly: who asks for a Service before it is there gets it by the next SYN
// that is sent again, though conntrack knows the connection as one to nowhere by then.
func TestAskedTooEarly(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	lab.EachMode(t, []string{"userspace", "queue", "nftables", "iptables", "ipvs"}, func(t *testing.T, mode string) {
		l := lab.New(t, testbed.Config{RemotePods: 1})
		l.Mode = mode
		l.ServeWeb()
		testbed.Keep(t)(l.RemotePods[0].WhoTCP(":8080")) // which answers by us only if it is we who ask
		l.Start("--cluster-cidr=10.244.0.0/16,2001:db8:244::/48")
		answered := askEarly(l, []*testbed.Host{l.Client, l.Pods[0], l.Node}, earlyAddr, earlyExternal)
		l.Write("early.yaml", earlyService,
			testbed.SliceManifest("early", 1, 8080, "TCP", testbed.Addrs(l.RemotePods...)...))
		answered()
	})
}

// TestAskedOneThatLeaves: who has asked an endpoint that does not answer, and that leaves its Service, reaches another
// one by the next SYN that is sent again.
func TestAskedOneThatLeaves(t *testing.T) {
	t.Parallel()
	lab.EachMode(t, []string{"nftables", "iptables"}, func(t *testing.T, mode string) {
		l := lab.New(t, testbed.Config{})
		l.Mode = mode
		l.ServeWeb()
		silent := l.Pods[0]
		drop := silent.Command(t.Context(), "iptables", "-A", "INPUT", "-p", "tcp", "--dport", "8080", "-j", "DROP")
		if out, err := drop.CombinedOutput(); err != nil {
			t.Fatalf("make an endpoint silent: %v, %s", err, out)
		}
		l.Publish("web", lab.WebAddr, "TCP", "", 8080, silent)
		l.Start()
		from := []*testbed.Host{l.Client, l.Pods[1], l.Node}
		answered := ask(l, from, lab.WebAddr)
		l.Eventually("every SYN is at the endpoint", func() bool {
			return trackedAt(l, unix.IPPROTO_TCP, lab.WebAddr, silent.Addr4) == len(from)
		})
		l.Publish("web", lab.WebAddr, "TCP", "", 8080, l.Pods[1:]...)
		answered()
	})
}

// TestEstablishedElsewhere: a connection to who has an external address himself goes on
// when a Service comes that has the address too.
func TestEstablishedElsewhere(t *testing.T) {
	t.Parallel()
	lab.EachMode(t, []string{"userspace", "iptables"}, func(t *testing.T, mode string) {
		l := lab.New(t, testbed.Config{})
		l.Mode = mode
		l.ServeWeb()
		l.Start()
		// pod-1 has the address, and answers by the node.
		host := l.Pods[1]
		for _, c := range []*testbed.Cmd{
			host.Command(t.Context(), "ip", "address", "add", "198.51.100.90/32", "dev", "lo"),
			l.Node.Command(t.Context(), "ip", "route", "add", "198.51.100.90/32", "via", host.Addr4.String()),
		} {
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		testbed.Keep(t)(host.EchoTCP("198.51.100.90:80"))
		c, err := l.Client.Dial(t.Context(), "tcp", earlyExternal)
		testbed.Check(t, err)
		defer c.Close()
		testbed.Check(t, c.SetDeadline(time.Now().Add(4*testbed.Patience)))
		in := bufio.NewReader(c)
		ask := func(line string) {
			t.Helper()
			if _, err := fmt.Fprintln(c, line); err != nil {
				t.Fatal(err)
			}
			if got, err := in.ReadString('\n'); got != line+"\n" {
				t.Fatalf("%q, %v; want %q", got, err, line)
			}
		}
		ask("before")
		// When this is answered the kernel has forgotten what it is to forget.
		answered := askEarly(l, []*testbed.Host{l.Client}, earlyAddr)
		l.Write("early.yaml", earlyService, testbed.SliceManifest("early", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
		answered()
		if name, err := l.Client.Who(earlyExternal); err != nil {
			t.Errorf("the Service: %q, %v", name, err)
		}
		ask("after")
		if n := tracked(l, unix.IPPROTO_TCP, earlyExternal); n != 1 {
			t.Errorf("%d entries that are not translated, want that of the connection", n)
		}
	})
}

// sendINIT sends an INIT to addr, always the same one, and reports whether the answer is an
// INIT ACK, if there is one within a moment.
func sendINIT(c *net.IPConn, addr netip.AddrPort) (bool, error) {
	b := []byte{0x9c, 0x40, byte(addr.Port() >> 8), byte(addr.Port()), 0, 0, 0, 0, 0, 0, 0, 0,
		1, 0, 0, 20, 0, 0, 0, 9, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	if _, err := c.Write(b); err != nil {
		return false, err
	}
	if err := c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		return false, err
	}
	answer := make([]byte, 1500)
	n, _, err := c.ReadFromIP(answer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	return n > 12 && answer[12] == 2, err // the first chunk, after the common header (RFC 9260, section 3)
}

// TestSCTPAskedTooEarly is TestAskedTooEarly by SCTP. The kernel forgets an INIT that nobody
// answers after some seconds by itself; here it does not.
func TestSCTPAskedTooEarly(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	lab.EachMode(t, []string{"userspace", "iptables"}, func(t *testing.T, mode string) {
		ends := testbed.NewSCTPEnds(t)
		l := lab.New(t, testbed.Config{Pods: 1})
		l.Mode = mode
		l.ServeWeb()
		ends.Echo(t, l.Pods[0])
		l.Start()
		// By now the kernel has loaded conntrack. Which of the states it is depends on the kernel.
		for _, state := range []string{"closed", "cookie_wait"} {
			testbed.Check(t, l.Node.Sysctl("net.netfilter.nf_conntrack_sctp_timeout_"+state, "600"))
		}
		addr := netip.MustParseAddrPort("10.96.0.38:3868")
		var c *net.IPConn
		err := l.Client.Do(func() (err error) {
			c, err = net.DialIP("ip4:132", nil, &net.IPAddr{IP: addr.Addr().AsSlice()})
			return err
		})
		testbed.Check(t, err)
		defer c.Close()
		if answered, err := sendINIT(c, addr); answered || err != nil {
			t.Fatalf("no answer: %v, %v", answered, err)
		}
		if n := tracked(l, unix.IPPROTO_SCTP, addr.Addr().String()+":0"); n != 1 {
			t.Fatalf("%d entries of the INIT, want 1", n)
		}
		l.Write("sig.yaml", lab.SCTPService,
			testbed.SliceManifest("sig", 1, ends.EchoPort, "SCTP", testbed.Addrs(l.Pods...)...))
		l.Eventually("the INIT is answered", func() bool {
			answered, err := sendINIT(c, addr)
			testbed.Check(t, err)
			return answered
		})
	})
}
