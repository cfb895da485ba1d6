package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/lb"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// requireVar set to 1 makes tests fail that would skip where the kernel has no ip_vs.
// make test-vm sets it.
const requireVar = "SLUICE_REQUIRE_IPVS"

const patience = 20 * time.Second // how long a test waits for what must happen

// node is a host that forwards by ipvs, with an engine for each family.
type node struct {
	*testbed.Testbed
	t       *testing.T
	engines [2]*Engine
	about   lb.Node
}

// newNode builds the hosts, and skips, or fails, where there is no ip_vs.
func newNode(t *testing.T, cfg testbed.Config) *node {
	t.Helper()
	n := &node{t: t, Testbed: testbed.NewT(t, cfg), engines: [2]*Engine{{}, {IPv6: true}}}
	n.about = lb.Node{
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("2001:db8:244:1::/64")},
		Addresses: []netip.Addr{
			n.Node.Addr4, n.Node.Addr6, n.Node.Alt4, n.Node.Alt6,
			netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("2001:db8:244:1::1"),
		},
	}
	n.inside(func() error {
		_, err := n.engines[0].Probe(t.Context())
		if errors.Is(err, errors.ErrUnsupported) {
			if os.Getenv(requireVar) == "1" {
				t.Fatalf("cannot test: %v", err)
			}
			t.Skipf("NOT TESTED: %v (make test-vm tests it; %s=1 makes this a failure)", err, requireVar)
		}
		return err
	})
	return n
}

// inside runs f on the node.
func (n *node) inside(f func() error) {
	n.t.Helper()
	if err := n.Node.Do(f); err != nil {
		n.t.Fatal(err)
	}
}

// sync has both engines forward services.
func (n *node) sync(services ...lb.Service) {
	n.t.Helper()
	n.inside(func() error {
		d := whole(services)
		return errors.Join(n.engines[0].Sync(n.t.Context(), d, n.about), n.engines[1].Sync(n.t.Context(), d, n.about))
	})
}

// verify returns whether both engines find everything in place.
func (n *node) verify() (good bool) {
	n.t.Helper()
	n.inside(func() error {
		a, err := n.engines[0].Verify(n.t.Context())
		b, err2 := n.engines[1].Verify(n.t.Context())
		good = a && b
		return errors.Join(err, err2)
	})
	return good
}

// output runs a command on the node and returns what it prints.
func (n *node) output(name string, args ...string) string {
	n.t.Helper()
	out, err := n.Node.Command(context.Background(), name, args...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// eventually waits until what is true, for what no event tells.
func (n *node) eventually(what string, is func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			n.t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond) // a pause between two looks
	}
}

// tell has a host answer connections, or datagrams, with its name and the address it
// sees as the client's, until the test ends.
func tell(t *testing.T, h *testbed.Host, protocol lb.Protocol, at netip.AddrPort) {
	t.Helper()
	answer := func(client net.Addr) []byte {
		a := netip.MustParseAddrPort(client.String())
		return []byte(h.Name + " " + a.Addr().Unmap().String())
	}
	if protocol == lb.UDP {
		pc, err := h.ListenPacket(t.Context(), "udp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		t.Cleanup(func() { _ = pc.Close(); <-done })
		go func() {
			defer close(done)
			buf := make([]byte, 64)
			for {
				_, client, err := pc.ReadFrom(buf)
				if errors.Is(err, net.ErrClosed) {
					return
				} else if err == nil {
					_, _ = pc.WriteTo(answer(client), client) // a client that has gone is its own affair
				}
			}
		}()
		return
	}
	ln, err := h.Listen(t.Context(), "tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(answer(c.RemoteAddr()))
			_ = c.Close()
		}
	}()
}

// dropSilence is how long nothing must be heard for a drop to be one.
const dropSilence = 1500 * time.Millisecond

// ask asks as a client would, and returns what is answered, or "refused" or "dropped". It
// waits for as long as it takes.
func ask(from *testbed.Host, protocol lb.Protocol, addr netip.AddrPort) string {
	return askWithin(from, protocol, addr, patience)
}

// askFor is ask where that may be a drop, if it is wanted.
func askFor(want string, from *testbed.Host, protocol lb.Protocol, addr netip.AddrPort) string {
	if strings.HasPrefix(want, "dropped") {
		return askWithin(from, protocol, addr, dropSilence)
	}
	return ask(from, protocol, addr)
}

func askWithin(from *testbed.Host, protocol lb.Protocol, addr netip.AddrPort, silence time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	c, err := from.Dial(ctx, strings.ToLower(protocol.String()), addr.String())
	if err != nil {
		return why(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(silence))
	if protocol == lb.UDP {
		// On the node itself EPERM is what becomes of a datagram that OUTPUT rejects or
		// drops; only the former leaves an ICMP error to be read.
		if _, err := c.Write([]byte("?")); err != nil && !errors.Is(err, syscall.EPERM) {
			return why(err)
		}
	}
	buf := make([]byte, 128)
	n, err := c.Read(buf)
	if err != nil {
		return why(err)
	}
	return string(buf[:n])
}

func why(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "dropped"
	}
	return err.Error()
}

func id(name string, p lb.Protocol, v6 bool) lb.ID {
	return lb.ID{Namespace: "default", Name: name, Protocol: p, IPv6: v6}
}

// backend is a ready one.
func backend(h *testbed.Host, v6 bool, port uint16) lb.Backend {
	b := lb.Backend{Addr: netip.AddrPortFrom(h.Addr4, port), Ready: true, Serving: true, Local: strings.HasPrefix(h.Name, "pod-")}
	if v6 {
		b.Addr = netip.AddrPortFrom(h.Addr6, port)
	}
	return b
}

// simple is a Service with a cluster IP.
func simple(name, ip string, port uint16, p lb.Protocol, backends ...lb.Backend) lb.Service {
	a := netip.AddrPortFrom(netip.MustParseAddr(ip), port)
	return lb.Service{ID: id(name, p, a.Addr().Is6()), Addresses: []lb.Address{{Addr: a}}, Backends: backends}
}

func family(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

func vip(v6 bool, n int) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:96::%x", n))
	}
	return netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
}
