package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/lb"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

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
	n.Node.DoT(n.t, func() error {
		err := n.engines[0].Probe(t.Context())
		if errors.Is(err, errors.ErrUnsupported) {
			testbed.MissingUnless(t, testbed.RequireIPVSVar, err.Error()+"; make test-vm tests it")
		}
		return err
	})
	return n
}

// sync makes both engines forward services.
func (n *node) sync(services ...lb.Service) {
	n.t.Helper()
	n.Node.DoT(n.t, func() error {
		d := whole(services)
		return errors.Join(n.engines[0].Sync(n.t.Context(), d, n.about), n.engines[1].Sync(n.t.Context(), d, n.about))
	})
}

// verify returns whether both engines find everything in place.
func (n *node) verify() (good bool) {
	n.t.Helper()
	n.Node.DoT(n.t, func() error {
		a, err := n.engines[0].Verify(n.t.Context())
		b, err2 := n.engines[1].Verify(n.t.Context())
		good = a && b
		return errors.Join(err, err2)
	})
	return good
}

const listRoutes = "ip route show table local proto 83"

// routes lists those of addresses of Services.
func (n *node) routes() string {
	return n.Node.Run(n.t, "sh", "-c", listRoutes+"; ip -6"+listRoutes[2:])
}

// serve makes a host answer connections, or datagrams, with its name and the address it
// sees as the client's, until the test ends.
func serve(t *testing.T, h *testbed.Host, protocol lb.Protocol, at netip.AddrPort) {
	t.Helper()
	if protocol == lb.UDP {
		testbed.Keep(t)(h.PeerUDP(at.String()))
	} else {
		testbed.Keep(t)(h.PeerTCP(at.String()))
	}
}

// serving makes the first pods answer, and returns them as backends.
func (n *node) serving(pods int, protocol lb.Protocol, v6 bool, port uint16) (out []lb.Backend) {
	n.t.Helper()
	for _, pod := range n.Pods[:pods] {
		b := backend(pod, v6, port)
		serve(n.t, pod, protocol, b.Addr)
		out = append(out, b)
	}
	return out
}

// dropSilence is how long nothing must be heard for a drop to be one.
const dropSilence = 1500 * time.Millisecond

// ask asks as a client would, for as long as it takes.
func ask(from *testbed.Host, protocol lb.Protocol, addr netip.AddrPort) string {
	return from.Ask(strings.ToLower(protocol.String()), addr.String(), testbed.Patience)
}

// askFor is ask where that may be a drop, if it is wanted.
func askFor(want string, from *testbed.Host, protocol lb.Protocol, addr netip.AddrPort) string {
	if strings.HasPrefix(want, testbed.Dropped) {
		return from.Ask(strings.ToLower(protocol.String()), addr.String(), dropSilence)
	}
	return ask(from, protocol, addr)
}

func id(name string, p lb.Protocol, v6 bool) lb.ID {
	return lb.ID{Namespace: "default", Name: name, Protocol: p, IPv6: v6}
}

// backend is a ready one.
func backend(h *testbed.Host, v6 bool, port uint16) lb.Backend {
	at := netip.AddrPortFrom(address(h, v6), port)
	return lb.Backend{Addr: at, Ready: true, Serving: true, Local: strings.HasPrefix(h.Name, "pod-")}
}

func address(h *testbed.Host, v6 bool) netip.Addr {
	if v6 {
		return h.Addr6
	}
	return h.Addr4
}

// also is one more address of a Service, for all clients.
func also(s *lb.Service, at netip.AddrPort, kind lb.Kind, local bool) {
	s.Addresses = append(s.Addresses, lb.Address{Addr: at, Kind: kind, Local: local})
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

func unspecified(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func vip(v6 bool, n int) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:96::%x", n))
	}
	return netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
}
