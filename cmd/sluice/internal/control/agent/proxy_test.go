package agent

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

func addrPorts(addrs ...string) (out []netip.AddrPort) {
	for _, addr := range addrs {
		out = append(out, netip.MustParseAddrPort(addr))
	}
	return out
}

// TestProxyOfACrash: the TCP proxy port is the same in all families that are steered, and where rules lead that a crash
// has left if that port can be had. A family that is not served after all has none any more once rules are written.
func TestProxyOfACrash(t *testing.T) {
	for _, test := range []struct {
		what        string
		first, last uint16           // of the range, that are free
		want        []netip.AddrPort // none: it cannot be had
	}{
		{"all are free", 31000, 31099, addrPorts("0.0.0.0:31050", "[::]:31050")},
		{"another program has it", 31099, 31099, addrPorts("0.0.0.0:31099", "[::]:31099")},
		{"none is free", 31100, 31100, nil},
	} {
		a, k := newAgent(t)
		a.Families[1] = Family{Steer: &Steering{idle{}.Sync, idle{}.Verify}, Bind: netip.IPv6Unspecified()}
		a.Ports, a.tcpPort, k.proxies = redirect.PortRange{First: 31000, Last: 31099}, 0, nil
		for port := a.Ports.First; port <= a.Ports.Last; port++ {
			k.taken[port] = port < test.first || port > test.last
		}
		err := a.Prime(Desired{}, redirect.Leftover{TCPPort: 31050})
		if !slices.Equal(k.proxies, test.want) || (err == nil) != (test.want != nil) {
			t.Fatalf("%s: it is open at %v, %v; want %v", test.what, k.proxies, err, test.want)
		}
		if err != nil {
			continue
		}
		a.Offer(true, Family{})
		mustApply(t, a, service(lb.TCP, "web", 1, 1))
		if !slices.Equal(k.proxies, test.want[:1]) || k.host.TCPPort != test.want[0].Port() {
			t.Errorf("%s: without IPv6 it is open at %v and steered to %d", test.what, k.proxies, k.host.TCPPort)
		}
	}
}

// TestProxyTakenOver: the TCP proxy port of the process before is kept if this one would have such a port, and else
// replaced, if another can be had; then it is closed once nothing is steered there.
func TestProxyTakenOver(t *testing.T) {
	for _, test := range []struct {
		what       string
		bind       string
		was        []netip.AddrPort
		taken      bool // the whole range, by others
		open, kept []netip.AddrPort
	}{
		{"it fits", "0.0.0.0", addrPorts("0.0.0.0:31003"), true, addrPorts("0.0.0.0:31003"),
			addrPorts("0.0.0.0:31003")},
		{"another range", "0.0.0.0", addrPorts("0.0.0.0:40000"), false,
			addrPorts("0.0.0.0:40000", "0.0.0.0:31003"), addrPorts("0.0.0.0:31003")},
		{"another address", "192.0.2.10", addrPorts("0.0.0.0:31003"), false,
			addrPorts("0.0.0.0:31003", "192.0.2.10:31003"), addrPorts("192.0.2.10:31003")},
		{"one family less", "0.0.0.0", addrPorts("0.0.0.0:31003", "[::]:31003"), true,
			addrPorts("0.0.0.0:31003", "[::]:31003"), addrPorts("0.0.0.0:31003")},
		{"another address that cannot be had", "192.0.2.10", addrPorts("0.0.0.0:31003"), true,
			addrPorts("0.0.0.0:31003"), addrPorts("0.0.0.0:31003")},
		{"there is no other", "0.0.0.0", addrPorts("0.0.0.0:40000"), true, addrPorts("0.0.0.0:40000"),
			addrPorts("0.0.0.0:40000")},
	} {
		a, k := newAgent(t)
		a.Families[0].Bind, a.Ports = netip.MustParseAddr(test.bind), redirect.PortRange{First: 31003, Last: 31003}
		k.proxies, k.taken[31003] = slices.Clone(test.was), test.taken
		a.Log = zap.NewNop() // it says where the port stays as it was
		testbed.Check(t, a.Adopt(State{TCPPort: test.was[0].Port()}))
		want := Desired{Services: lists.Of([]*lb.Service{service(lb.TCP, "web", 1, 1)})}
		a.TakeOver(want)
		k.fail = errors.New("xtables lock held by another program")
		if err := a.Apply(t.Context(), want); !errors.Is(err, k.fail) || !slices.Equal(k.proxies, test.open) {
			t.Errorf("%s: before rules are written it is open at %v, %v; want %v", test.what, k.proxies, err, test.open)
		}
		k.fail = nil
		mustApply(t, a, service(lb.TCP, "web", 1, 1))
		if port := test.kept[0].Port(); !slices.Equal(k.proxies, test.kept) || k.host.TCPPort != port ||
			a.State().TCPPort != port {
			t.Errorf("%s: then it is open at %v and steered to %d, want %v", test.what, k.proxies, k.host.TCPPort,
				test.kept)
		}
	}
}
