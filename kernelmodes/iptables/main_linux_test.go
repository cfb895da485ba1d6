package iptables

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/lb"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// variant is one backend of iptables in one family.
type variant struct {
	ipv6   bool
	legacy bool
}

func (v variant) command() string {
	c := "iptables"
	if v.ipv6 {
		c = "ip6tables"
	}
	if v.legacy {
		return c + "-legacy"
	}
	return c + "-nft"
}

func (v variant) engine() *Engine { return &Engine{IPv6: v.ipv6, Command: v.command()} }

// eachVariant runs a test with each, on a host of its own.
func eachVariant(t *testing.T, f func(*testing.T, *testbed.Host, variant)) {
	for _, v := range []variant{{false, false}, {true, false}, {false, true}, {true, true}} {
		t.Run(v.command(), func(t *testing.T) {
			tb := testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1})
			if _, err := exec.LookPath(v.command()); err != nil {
				testbed.Missing(t, err.Error())
			}
			f(t, tb.Node, v)
		})
	}
}

// wrapped writes programs that run those of a variant after a piece of shell, and returns
// the name of the first.
func wrapped(t testing.TB, dir string, v variant, before string) string {
	t.Helper()
	for _, suffix := range []string{"", "-save", "-restore"} {
		testbed.WriteScript(t, filepath.Join(dir, "ipt"+suffix),
			fmt.Sprintf("%s\nexec %s%s \"$@\"\n", before, v.command(), suffix))
	}
	return filepath.Join(dir, "ipt")
}

// save returns what iptables-save says on a host.
func save(t testing.TB, h *testbed.Host, v variant) string {
	t.Helper()
	return shell(t, h, v.command()+"-save")
}

// shell runs a command on a host and returns what it prints.
func shell(t testing.TB, h *testbed.Host, command string) string {
	t.Helper()
	return h.Run(t, "sh", "-c", command)
}

// ip returns the n-th address of one of the ranges of tests.
func ip(ipv6 bool, network string, n int) netip.Addr {
	four := map[string]string{
		"cluster": "10.96.%d.%d", "external": "198.51.%d.%d", "lb": "203.0.%d.%d", "pod": "10.244.%d.%d",
		"node": "192.0.%d.%d",
	}
	six := map[string]string{
		"cluster": "2001:db8:96::%x:%x", "external": "2001:db8:51::%x:%x", "lb": "2001:db8:113::%x:%x",
		"pod": "2001:db8:244::%x:%x", "node": "2001:db8:2::%x:%x",
	}
	format := four[network]
	if ipv6 {
		format = six[network]
	}
	return netip.MustParseAddr(fmt.Sprintf(format, n>>8, n&255))
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func anywhere(ipv6 bool, port uint16) netip.AddrPort {
	if ipv6 {
		return at(netip.IPv6Unspecified(), port)
	}
	return at(netip.IPv4Unspecified(), port)
}

// plain is Service number n with cluster IP n and backends on this node.
func plain(ipv6 bool, n int, backends ...int) lb.Service {
	s := lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprint("s", n), Protocol: lb.TCP, IPv6: ipv6}}
	s.Addresses = []lb.Address{{Addr: at(ip(ipv6, "cluster", n), 80)}}
	for _, b := range backends {
		s.Backends = append(
			s.Backends, lb.Backend{Addr: at(ip(ipv6, "pod", b), 8080), Ready: true, Serving: true, Local: true},
		)
	}
	return s
}

func podNet(ipv6 bool) netip.Prefix {
	return netip.PrefixFrom(ip(ipv6, "pod", 0), map[bool]int{false: 16, true: 48}[ipv6]).Masked()
}
