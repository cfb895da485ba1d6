package lab

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// Engine is what each package of engines has.
type Engine interface {
	Sync(context.Context, lb.Delta, lb.Node) error
	Verify(context.Context) (bool, error)
}

// Lab is hosts of which the node forwards by an engine for each family.
type Lab struct {
	*testbed.Testbed
	T       *testing.T
	Engines func(family int) Engine // 0: IPv4, 1: IPv6
	About   lb.Node
}

// New builds the hosts.
func New(t *testing.T, cfg testbed.Config, engines func(family int) Engine) *Lab {
	t.Helper()
	l := &Lab{T: t, Testbed: testbed.NewT(t, cfg), Engines: engines}
	l.About = lb.Node{
		PodCIDRs:  []netip.Prefix{testbed.PodNet(false), testbed.PodNet(true)},
		Addresses: addressesOf(l.Node),
	}
	return l
}

// addressesOf returns all addresses of a node with pods.
func addressesOf(node *testbed.Host) []netip.Addr {
	return []netip.Addr{node.Addr4, node.Addr6, node.Alt4, node.Alt6, testbed.Gateway(false), testbed.Gateway(true)}
}

// Sync makes both engines forward services.
func (l *Lab) Sync(services ...lb.Service) {
	l.T.Helper()
	l.Node.DoT(l.T, func() error {
		d := served(l.About, services)
		return errors.Join(l.Engines(0).Sync(l.T.Context(), d, l.About), l.Engines(1).Sync(l.T.Context(), d, l.About))
	})
}

// served is a delta to Services as they are on a node, in a table.
func served(about lb.Node, services []lb.Service) lb.Delta {
	_, d, err := new(lb.Table).Next(Whole(services...).Added, about)
	if err != nil {
		panic(err) // what a test wants is not refused
	}
	return d
}

// Whole is a delta to these Services.
func Whole(services ...lb.Service) lb.Delta {
	d := lb.Delta{Whole: true}
	for _, s := range services {
		d.Added = append(d.Added, &s)
	}
	return d
}

// Verify returns whether both engines find everything in place.
func (l *Lab) Verify() (good bool) {
	l.T.Helper()
	l.Node.DoT(l.T, func() error {
		a, err := l.Engines(0).Verify(l.T.Context())
		b, err2 := l.Engines(1).Verify(l.T.Context())
		good = a && b
		return errors.Join(err, err2)
	})
	return good
}

// Serve makes a host answer connections, or datagrams, with its name and the address it
// sees as the client's, until the test ends.
func Serve(t *testing.T, h *testbed.Host, protocol lb.Protocol, at netip.AddrPort) {
	t.Helper()
	testbed.Keep(t)(h.Peer(protocol.String(), at.String()))
}

// Serving makes the first pods answer, and returns them as backends.
func (l *Lab) Serving(pods int, protocol lb.Protocol, v6 bool, port uint16) (out []lb.Backend) {
	l.T.Helper()
	for _, pod := range l.Pods[:pods] {
		b := Backend(pod, v6, port)
		Serve(l.T, pod, protocol, b.Addr)
		out = append(out, b)
	}
	return out
}

// Ask asks as a client would, for as long as it takes.
func Ask(from *testbed.Host, protocol lb.Protocol, addr netip.AddrPort) string {
	return from.Ask(protocol.String(), addr.String(), testbed.Patience)
}

// AskFor is Ask where that may be a drop, if it is wanted.
func AskFor(want string, from *testbed.Host, protocol lb.Protocol, addr netip.AddrPort) string {
	if strings.HasPrefix(want, testbed.Dropped) {
		return from.Ask(protocol.String(), addr.String(), dropSilence)
	}
	return Ask(from, protocol, addr)
}

// ID names a Service of the namespace default.
func ID(name string, p lb.Protocol, v6 bool) lb.ID {
	return lb.ID{Namespace: "default", Name: name, Protocol: p, IPv6: v6}
}

// Backend is a ready one.
func Backend(h *testbed.Host, v6 bool, port uint16) lb.Backend {
	at := netip.AddrPortFrom(h.Addr(v6), port)
	return lb.Backend{Addr: at, Ready: true, Serving: true, Local: strings.HasPrefix(h.Name, "pod-")}
}

// Also adds an address to a Service, for all clients.
func Also(s *lb.Service, at netip.AddrPort, kind lb.Kind, local bool) {
	s.Addresses = append(s.Addresses, lb.Address{Addr: at, Kind: kind, Local: local})
}

// Simple is a Service with a cluster IP.
func Simple(name, ip string, port uint16, p lb.Protocol, backends ...lb.Backend) lb.Service {
	a := netip.AddrPortFrom(netip.MustParseAddr(ip), port)
	return lb.Service{ID: ID(name, p, a.Addr().Is6()), Addresses: []lb.Address{{Addr: a}}, Backends: backends}
}
