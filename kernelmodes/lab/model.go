package lab

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// IP returns the n-th address of one of the ranges of tests.
func IP(ipv6 bool, network string, n int) netip.Addr {
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

// At is an address with a port.
func At(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// Anywhere is a port of every address.
func Anywhere(ipv6 bool, port uint16) netip.AddrPort { return At(testbed.Unspecified(ipv6), port) }

// Plain is Service number n with cluster IP n and backends on this node.
func Plain(ipv6 bool, n int, backends ...int) lb.Service {
	s := lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprint("s", n), Protocol: lb.TCP, IPv6: ipv6}}
	s.Addresses = []lb.Address{{Addr: At(IP(ipv6, "cluster", n), 80)}}
	for _, b := range backends {
		s.Backends = append(
			s.Backends, lb.Backend{Addr: At(IP(ipv6, "pod", b), 8080), Ready: true, Serving: true, Local: true},
		)
	}
	return s
}

// PodNet is where the addresses of pods are from.
func PodNet(ipv6 bool) netip.Prefix {
	return netip.PrefixFrom(IP(ipv6, "pod", 0), map[bool]int{false: 16, true: 48}[ipv6]).Masked()
}

var changes = flag.Int("model.changes", 300,
	"`number` of random changes of a family in models of rules; a tenth with -short")

// Changes is how many a test makes of a [Model]. Its seed is another in each run, so that many runs walk as far as a
// long one.
func Changes() int {
	if testing.Short() {
		return max(1, *changes/10)
	}
	return *changes
}

// Model is a set of Services that changes at random.
type Model struct {
	Rand *rand.Rand
	IPv6 bool
	Node lb.Node
	Now  map[int]lb.Service
}

// Services returns those that there are, by name.
func (m *Model) Services() []lb.Service {
	return slices.SortedFunc(maps.Values(m.Now), func(a, b lb.Service) int { return cmp.Compare(a.Name, b.Name) })
}

// Since returns how the Services differ from those of before.
func (m *Model) Since(before map[int]lb.Service) (d lb.Delta) {
	for n, s := range m.Now {
		if old, there := before[n]; !there {
			d.Added = append(d.Added, &s)
		} else if !old.Equal(&s) {
			d.Changed = append(d.Changed, lb.Change{Old: &old, New: &s})
		}
	}
	for n, old := range before {
		if _, there := m.Now[n]; !there {
			d.Removed = append(d.Removed, &old)
		}
	}
	return d
}

// Change changes one Service, mostly.
func (m *Model) Change() {
	if m.Now == nil {
		m.Now = make(map[int]lb.Service)
	}
	if m.Rand.IntN(50) == 0 {
		m.Node.PodCIDRs = [][]netip.Prefix{
			nil, {PodNet(m.IPv6)}, {PodNet(true), PodNet(false), netip.MustParsePrefix("100.64.0.0/10")},
		}[m.Rand.IntN(3)]
	}
	for range 1 + m.Rand.IntN(2)*m.Rand.IntN(2)*m.Rand.IntN(8) {
		n := m.Rand.IntN(12)
		if m.Rand.IntN(4) == 0 {
			delete(m.Now, n)
		} else {
			m.Now[n] = m.service(n)
		}
	}
}

// service makes a Service whose addresses no other has.
func (m *Model) service(n int) lb.Service {
	s := Plain(m.IPv6, n*7)
	s.Protocol = []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP}[n%3]
	local, sources := m.Rand.IntN(2) == 0, []netip.Prefix(nil)
	if m.Rand.IntN(3) == 0 {
		a := IP(m.IPv6, "node", m.Rand.IntN(50))
		sources = append(sources, netip.PrefixFrom(a, a.BitLen()-4).Masked())
	}
	for _, a := range []lb.Address{
		{Addr: Anywhere(m.IPv6, uint16(30000+20*n)), Kind: lb.NodePort},
		{Addr: At(IP(m.IPv6, "external", n), 443), Kind: lb.ExternalIP},
		{Addr: At(IP(m.IPv6, "lb", n), 443), Kind: lb.LoadBalancerIP, Sources: sources},
	} {
		if a.Local = local; m.Rand.IntN(2) == 0 {
			s.Addresses = append(s.Addresses, a)
		}
	}
	for i := range m.Rand.IntN(4) {
		b := Plain(m.IPv6, n, i+m.Rand.IntN(2)*10).Backends[0]
		b.Ready, b.Terminating, b.Local = m.Rand.IntN(3) > 0, m.Rand.IntN(2) == 0, m.Rand.IntN(2) == 0
		if !slices.ContainsFunc(s.Backends, func(c lb.Backend) bool { return c.Addr == b.Addr }) {
			s.Backends = append(s.Backends, b)
		}
	}
	if m.Rand.IntN(3) == 0 {
		s.AffinityTimeout = int64(1+m.Rand.IntN(3)) * 1e9
	}
	return s
}
