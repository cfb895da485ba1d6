package lab

import (
	_ "embed"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

//go:embed testdata/kube-proxy.txt
var kubeProxyCases string

// Setup is how a case wants its engine.
type Setup struct {
	IPv6 bool
	All  bool          // masquerade all
	Node *testbed.Host // that forwards
}

// KubeProxyCases sends the packets of kube-proxy's own tests through engines, and wants their verdicts; where endpoints
// see the client's address, also that it is masqueraded only where it must be. Left out are:
//   - the texts of rules, and what concerns no packet: maps of Services and endpoints, health-check node ports,
//     conntrack cleanup, partial syncs, metrics and logs, which are kube-proxy's own and have tests elsewhere;
//   - packets of SCTP, which not every kernel has: the tests of the whole program send them.
//
// Of TestOverallNFTablesRules, which compares texts, the Services are asked. The client that the tests call 10.180.0.2
// is 10.180.0.9, since others have an endpoint of that address.
func KubeProxyCases(t *testing.T, seeClients bool, engine func(Setup) Engine) {
	c := newCases(t)
	c.seeClients = seeClients
	for _, text := range strings.Split(kubeProxyCases, "\ncase ")[1:] {
		name, steps, _ := strings.Cut(text, "\n")
		name, options, _ := strings.Cut(name, " |")
		t.Run(strings.TrimSpace(name), func(t *testing.T) { c.run(t, engine, options, strings.TrimSpace(steps)) })
	}
}

// cases are hosts on either side of a node: clients, and endpoints.
type cases struct {
	node, clients, endpoints *testbed.Host
	serving                  map[string]bool
	services                 []lb.Service
	about                    lb.Node
	seeClients               bool
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, text := range list {
		if !strings.Contains(text, "/") {
			a := netip.MustParseAddr(text)
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

var (
	nodeAddrs   = []string{"192.168.0.2/24", "192.168.1.2/24", "192.168.99.11", "2001:db8::1/64", "2001:db8:1::2/64"}
	podAddrs    = []string{"10.0.0.2", "10.180.0.9", "fd00:10::2"}
	remoteAddrs = []string{"203.0.113.2", "203.0.113.130", "2600:5200::1"}
)

func newCases(t *testing.T) *cases {
	hosts := testbed.NewHostsT(t, "node", "clients", "endpoints")
	c := &cases{node: hosts[0], clients: hosts[1], endpoints: hosts[2], serving: make(map[string]bool)}
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		testbed.Check(t, c.node.Sysctl(key, "1"))
	}
	end := func(h *testbed.Host, name string, addrs ...string) testbed.End {
		return testbed.End{Host: h, Name: name, Addrs: prefixes(addrs...)}
	}
	testbed.Check(t, testbed.Cable(end(c.node, "eth0", nodeAddrs...), end(c.clients, "eth0",
		append([]string{"192.168.0.3/24", "2001:db8::3/64"}, append(podAddrs, remoteAddrs...)...)...)))
	testbed.Check(t, testbed.Cable(end(c.node, "eth1", "10.255.0.1/30", "fd00:ffff::1/64"),
		end(c.endpoints, "eth1", "10.255.0.2/30", "fd00:ffff::2/64")))
	for _, r := range []struct {
		from    *testbed.Host
		dev, to string
		via     string
	}{
		{c.clients, "eth0", "0.0.0.0/0", "192.168.0.2"}, {c.clients, "eth0", "::/0", "2001:db8::1"},
		{c.endpoints, "eth1", "0.0.0.0/0", "10.255.0.1"}, {c.endpoints, "eth1", "::/0", "fd00:ffff::1"},
		{c.node, "eth0", "0.0.0.0/0", "192.168.0.3"}, {c.node, "eth0", "::/0", "2001:db8::3"},
		{c.node, "eth0", "10.180.0.9/32", "192.168.0.3"}, {c.node, "eth1", "10.180.0.0/16", "10.255.0.2"},
		{c.node, "eth1", "10.0.1.0/24", "10.255.0.2"}, {c.node, "eth1", "fd00:10:180::/48", "fd00:ffff::2"},
	} {
		testbed.Check(t, r.from.Route(r.dev, netip.MustParsePrefix(r.to), netip.MustParseAddr(r.via)))
	}
	for _, p := range prefixes(nodeAddrs...) {
		c.about.Addresses = append(c.about.Addresses, p.Addr())
	}
	return c
}

// run makes the Services of a case, in their order, and sends its packets.
func (c *cases) run(t *testing.T, engine func(Setup) Engine, options, steps string) {
	c.services, c.about.PodCIDRs = nil, prefixes("10.0.0.0/8", "fd00:10::/64")
	if strings.Contains(options, "undetected") {
		c.about.PodCIDRs = nil
	}
	var engines []Engine
	for _, v6 := range []bool{false, true} {
		engines = append(engines, engine(Setup{v6, strings.Contains(options, "masquerade-all"), c.node}))
	}
	sync := func() {
		c.node.DoT(t, func() error {
			for _, e := range engines {
				if err := e.Sync(t.Context(), served(c.about, c.services), c.about); err != nil {
					return err
				}
			}
			return nil
		})
	}
	changed := false
	for line := range strings.Lines(steps) {
		w := strings.Fields(line)
		switch {
		case len(w) == 0:
		case w[0] == "svc":
			c.services, changed = append(c.services, c.service(w[1:])), true
		case w[0] == "ep":
			c.endpoint(t, w[1:])
			changed = true
		case w[0] == "gone":
			c.find(w[1]).Backends, changed = nil, true
		default:
			if changed {
				sync()
				changed = false
			}
			c.packet(t, w)
		}
	}
}

func (c *cases) find(name string) *lb.Service {
	return &c.services[slices.IndexFunc(c.services, func(s lb.Service) bool { return s.Name == name })]
}

// service reads a line of a Service.
func (c *cases) service(w []string) lb.Service {
	cluster := netip.MustParseAddrPort(w[2])
	s := lb.Service{ID: ID(w[0], protocol(w[1]), cluster.Addr().Is6())}
	has := func(word string) bool { return slices.Contains(w, word) }
	s.Addresses = []lb.Address{{Addr: cluster, Local: has("itp")}}
	at := []string{"192.168.0.2"}
	if s.IPv6 {
		at[0] = "2001:db8::1"
	}
	var sources []netip.Prefix
	for _, word := range w[3:] {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "at":
			at = strings.Split(value, ",")
		case "sources":
			sources = prefixes(strings.Split(value, ",")...)
		case "affinity":
			s.AffinityTimeout = int64(3 * time.Hour)
		}
	}
	for _, word := range w[3:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "node":
			for _, ip := range at {
				addr := netip.MustParseAddrPort(net.JoinHostPort(ip, value))
				s.Addresses = append(s.Addresses, lb.Address{Addr: addr, Kind: lb.NodePort, Local: has("etp")})
			}
		case "external", "lb":
			a := lb.Address{Addr: netip.MustParseAddrPort(value), Kind: lb.ExternalIP, Local: has("etp")}
			if name == "lb" {
				a.Kind, a.Sources = lb.LoadBalancerIP, sources
			}
			s.Addresses = append(s.Addresses, a)
		}
	}
	return s
}

// endpoint reads a line of an endpoint, and has it answer.
func (c *cases) endpoint(t *testing.T, w []string) {
	s, has := c.find(w[0]), func(word string) bool { return slices.Contains(w, word) }
	addr := netip.MustParseAddrPort(w[1])
	b := lb.Backend{Addr: addr, Local: has("here"), Terminating: has("terminating") || has("dead")}
	b.Ready, b.Serving = !b.Terminating, !has("dead")
	s.Backends = append(slices.Clone(s.Backends), b)
	key := fmt.Sprint(s.Protocol, addr)
	if c.serving[key] {
		return
	}
	c.serving[key] = true
	c.endpoints.Run(t, "sh", "-c", fmt.Sprintf("ip addr replace %s dev lo nodad", prefixes(addr.Addr().String())[0]))
	_, err := c.endpoints.Answer(s.Protocol.String(), addr.String(), func(client netip.AddrPort) string {
		return addr.String() + " " + client.String()
	})
	testbed.Check(t, err) // it serves until all cases are over
}

func protocol(name string) lb.Protocol {
	if name == "udp" {
		return lb.UDP
	}
	return lb.TCP
}

// packet sends as many as there are endpoints, and wants each of them to answer once.
func (c *cases) packet(t *testing.T, w []string) {
	from, want := netip.MustParseAddr(w[0]), w[3:]
	masq := want[len(want)-1] == "masq"
	if masq {
		want = want[:len(want)-1]
	}
	to, name, _ := strings.Cut(w[1], "/")
	host := c.clients
	switch {
	case slices.Contains(c.about.Addresses, from):
		host = c.node
	case from == netip.MustParseAddrPort(to).Addr(): // the node has the address that it asks
		host = c.node
		c.node.Run(t, "ip", "addr", "add", prefixes(w[0])[0].String(), "dev", "lo")
		defer c.node.Run(t, "ip", "addr", "del", prefixes(w[0])[0].String(), "dev", "lo")
	case slices.ContainsFunc(c.services, func(s lb.Service) bool {
		return slices.ContainsFunc(s.Backends, func(b lb.Backend) bool { return b.Addr.Addr() == from })
	}):
		host = c.endpoints
	}
	var got []string
	for range want {
		who, seen := ask(host, from, protocol(name), to, want[0])
		if client, err := netip.ParseAddrPort(seen); err == nil && c.seeClients && (client.Addr() != from) != masq {
			t.Errorf("%s: %s sees %s; masqueraded: want %v", strings.Join(w, " "), who, client, masq)
		}
		got = append(got, who)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q", strings.Join(w, " "), got)
	}
}

// ask returns what a client from an address of a host gets, in the words of the cases, and whom it was taken for.
func ask(host *testbed.Host, from netip.Addr, p lb.Protocol, to, want string) (who, seen string) {
	within := testbed.Patience
	if want == "DROP" {
		within = dropSilence
	}
	answer := host.AskFrom(netip.AddrPortFrom(from, 0), p.String(), to, within)
	switch answer {
	case testbed.Refused:
		if want == "NODE" { // it has no such port
			return want, ""
		}
		return "REJECT", ""
	case testbed.Dropped:
		return "DROP", ""
	}
	who, seen, _ = strings.Cut(answer, " ")
	return who, seen
}
