package redirect

import (
	"context"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/lb"
)

// Names of the sets and maps of nf_tables. Those of frontends have the exact addresses, and those that
// end in nodeSuffix the node ports.
const (
	mapSteer      = "steer"       // frontends that are redirected, and their proxy ports
	nftRefuse     = "refuse"      // frontends without endpoints
	nftAccept     = "accept"      // frontends that the proxy listens on, or that have its port's number
	nftProxyPorts = "proxy-ports" // where clients may not ask directly

	nftDrop       = "drop"       // frontends that never answer
	nftOutside    = "outside"    // frontends that do not answer other hosts
	nftRestricted = "restricted" // frontends that answer some clients

	nftAllowed = "allowed" // restricted frontends and their clients
	nftInside  = "inside"  // where this node's pods are

	nftKnown      = "known" // all exact frontends
	nftClusterIPs = "cluster-ips"
	nftCIDRs      = "service-cidrs" // where cluster IPs are from

	nodeSuffix = "-node-ports"
)

// What packets are looked up by.
var (
	toFrontend = []nft.Load{nft.Destination, nft.L4Proto, nft.DestinationPort}
	toPort     = []nft.Load{nft.L4Proto, nft.DestinationPort}
)

// nftRules is what the entries of one family come to in nf_tables. Their number is constant:
// an entry is elements of sets and maps.
type nftRules struct {
	*nft.Table
	bind    netip.Addr // where steered packets go; invalid means redirect
	host    Host
	entries map[lb.Frontend]Entry
	stale   bool // rules are to be rendered
}

// newNFTRules returns the rules of some entries, which it keeps, in a table that has nothing.
func newNFTRules(table *nft.Table, bind netip.Addr, host Host, entries map[lb.Frontend]Entry) *nftRules {
	r := &nftRules{Table: table, bind: bind, host: host, entries: entries, stale: true}
	exact, node := []nft.Field{nft.Address, nft.Protocol, nft.Port}, []nft.Field{nft.Protocol, nft.Port}
	nets := []nft.Field{nft.NFProto, nft.Address}
	table.AddSet(nft.Set{Name: mapSteer, Key: exact, Data: []nft.Field{nft.Port}})
	table.AddSet(nft.Set{Name: nftProxyPorts, Key: node})
	for name, rank := range map[string]int{nftRefuse: 0, nftAccept: 0, nftDrop: 1, nftOutside: 1} {
		table.AddSet(nft.Set{Name: name, Key: exact, Rank: rank})
		table.AddSet(nft.Set{Name: name + nodeSuffix, Key: node, Rank: rank})
	}
	// Who may ask is known before others are dropped, and these before anything is steered.
	table.AddSet(nft.Set{Name: nftRestricted, Key: exact, Rank: 1})
	table.AddSet(nft.Set{Name: nftAllowed, Key: append(slices.Clone(exact), nft.Address), Prefixes: true, Rank: 2})
	table.AddSet(nft.Set{Name: nftInside, Key: nets, Prefixes: true, Rank: 2})
	table.AddSet(nft.Set{Name: nftKnown, Key: exact})
	table.AddSet(nft.Set{Name: nftClusterIPs, Key: exact[:1]})
	table.AddSet(nft.Set{Name: nftCIDRs, Key: nets, Prefixes: true})
	r.hostElements(1)
	r.change(nil, slices.Collect(maps.Values(entries)))
	return r
}

func (r *nftRules) setHost(host Host) {
	if host.equal(r.host) {
		return
	}
	ports := host.TCPPort != r.host.TCPPort
	again := func(n int32) {
		r.hostElements(n)
		for _, e := range r.entries {
			if ports && e.Frontend.Protocol == lb.TCP {
				r.count(e, n)
			}
		}
	}
	again(-1)
	r.host, r.stale = host, true
	again(1)
}

func (r *nftRules) hostElements(n int32) {
	for set, nets := range map[string][]netip.Prefix{nftInside: r.host.Inside, nftCIDRs: r.host.ServiceCIDRs} {
		for _, net := range nets {
			r.Add(set, nft.Range(net), n)
		}
	}
	if r.host.TCPPort != 0 {
		r.Add(nftProxyPorts, portElement(lb.TCP, r.host.TCPPort), n)
	}
}

func (r *nftRules) change(gone, come []Entry) {
	for _, e := range gone {
		r.count(e, -1)
	}
	for _, e := range come {
		r.count(e, 1)
	}
}

// count adds n references to the elements that an entry needs.
func (r *nftRules) count(e Entry, n int32) {
	f := e.Frontend
	node := nodePort(f.Addr)
	if !node {
		r.Add(nftKnown, frontendElement(f), n)
	}
	add := func(set string) {
		if node {
			r.Add(set+nodeSuffix, portElement(f.Protocol, f.Addr.Port()), n)
		} else {
			r.Add(set, frontendElement(f), n)
		}
	}
	switch e.Action {
	case Redirect:
		port := e.proxyPort(r.host)
		x := frontendElement(f)
		x.Data = nft.Key(port)
		r.Add(mapSteer, x, n)
		if f.Protocol != lb.TCP {
			r.Add(nftProxyPorts, portElement(f.Protocol, port), n)
		}
		if e.numberedAsProxy(r.host) {
			add(nftAccept)
		}
	case Accept:
		add(nftAccept)
	case Refuse:
		add(nftRefuse)
	case Drop:
		add(nftDrop)
	}
	if e.ClusterIP {
		r.Add(nftClusterIPs, nft.Element{Key: nft.Key(f.Addr.Addr())}, n)
	}
	if e.DropOutside {
		add(nftOutside)
	}
	if e.Sources != nil {
		add(nftRestricted)
	}
	for _, source := range e.Sources {
		r.Add(nftAllowed, nft.Range(source, f.Addr.Addr(), netfilter.ProtocolNumber(f.Protocol), f.Addr.Port()), n)
	}
}

func frontendElement(f lb.Frontend) nft.Element {
	return nft.Element{Key: nft.Key(f.Addr.Addr(), netfilter.ProtocolNumber(f.Protocol), f.Addr.Port())}
}

func portElement(p lb.Protocol, port uint16) nft.Element {
	return nft.Element{Key: nft.Key(netfilter.ProtocolNumber(p), port)}
}

// steeredTo returns the frontend of an element of the map steer, and its proxy port.
func steeredTo(e nft.Element, ipv6 bool) (f lb.Frontend, port uint16) {
	n := netfilter.Unspecified(ipv6).BitLen() / 8
	if len(e.Key) != n+8 || len(e.Data) < 2 { // each field has whole registers of four bytes
		return lb.Frontend{}, 0
	}
	addr, _ := netip.AddrFromSlice([]byte(e.Key[:n]))
	f.Protocol = netfilter.ProtocolOf(e.Key[n])
	f.Addr = netip.AddrPortFrom(addr, binary.BigEndian.Uint16([]byte(e.Key[n+4:])))
	return f, binary.BigEndian.Uint16([]byte(e.Data))
}

func (r *nftRules) write(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.render()
	return r.Write()
}

// Verify implements rules.
func (r *nftRules) Verify(ctx context.Context) (bool, error) { return r.Table.Verify(ctx) }

// render brings to date what does not follow from single entries.
func (r *nftRules) render() {
	if r.stale {
		r.setRules()
	}
	r.stale = false
}

func (r *nftRules) setRules() {
	// What is steered here passes no nftables and iptables of others, and what these translate is not undefined.
	// A chain of nat sees the first packet of a flow alone, until one translates it, so that others cost nothing.
	const translation = -100 // NF_IP_PRI_NAT_DST
	// Every new connection of the node passes these rules, and every dial of a loop. Most ask for no frontend, and
	// leave after three lookups.
	into := []nft.Rule{
		r.rule().In(nftKnown, toFrontend...).GotoChain("frontends").Rule(""),
		r.rule().ToLocal().GotoChain("node-ports").Rule(""),
	}
	undefined := func(set string, key ...nft.Load) nft.Rule {
		return r.rule().In(set, key...).GotoChain("undefined").Rule("")
	}
	// A packet that is read during a transaction may miss what moves between sets, and all of a map that is replaced
	// (nft_map_deactivate of Linux 6.4). It looks again, by the new rules.
	left := append(slices.Clone(into),
		undefined(nftClusterIPs, nft.Destination), undefined(nftCIDRs, nft.Family, nft.Destination))
	hooks := map[string]uint32{"prerouting": unix.NF_INET_PRE_ROUTING, "output": unix.NF_INET_LOCAL_OUT}
	for name, hook := range hooks {
		r.SetChain(name, &nft.Hook{Type: "nat", Number: hook, Priority: translation - 10}, into)
		r.SetChain(name+"-left", &nft.Hook{Type: "nat", Number: hook, Priority: translation + 10}, left)
	}
	restricted := r.rule().In(nftRestricted, toFrontend...).
		NotIn(nftAllowed, append(slices.Clone(toFrontend), nft.Source)...).Drop().Rule("not from this source")
	r.SetChain("frontends", nil, slices.Concat(r.screen("", toFrontend), []nft.Rule{restricted}, r.toProxy(),
		r.noEndpoints("", toFrontend)))
	r.SetChain("node-ports", nil, slices.Concat(r.screen(nodeSuffix, toPort), r.noEndpoints(nodeSuffix, toPort)))
	r.SetChain("undefined", nil, r.undefined())
	r.SetChain("refuse", nil, []nft.Rule{
		r.rule().Protocol(unix.IPPROTO_TCP).Reject(true).Rule(""), r.rule().Reject(false).Rule("")})
	r.SetChain("input", &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: -10, New: true}, r.guard())
}

func (r *nftRules) rule() *nft.Builder { return nft.NewRule(r.IPv6) }

// screen makes the rules that drop forbidden clients. The names of its sets end in suffix, and to is their key.
func (r *nftRules) screen(suffix string, to []nft.Load) []nft.Rule {
	// What comes in by no interface, or by loopback, is from this node. Before Linux 5.11 a packet without an
	// interface matches neither.
	return []nft.Rule{
		r.rule().In(nftDrop+suffix, to...).Drop().Rule("no answer"),
		r.rule().In(nftOutside+suffix, to...).Is(nft.InInterface, false, nft.Key("lo")).
			Is(nft.InInterface, false, nft.Key("")).NotIn(nftInside, nft.Family, nft.Source).
			Drop().Rule("not for other hosts"),
	}
}

// noEndpoints makes the rule that refuses.
func (r *nftRules) noEndpoints(suffix string, to []nft.Load) []nft.Rule {
	return []nft.Rule{r.rule().In(nftRefuse+suffix, to...).GotoChain("refuse").Rule("no endpoints")}
}

// toProxy makes the rules that steer.
func (r *nftRules) toProxy() (rules []nft.Rule) {
	add := func(b *nft.Builder) { rules = append(rules, b.Rule("to the proxy")) }
	if r.bind.IsValid() {
		add(r.rule().Map(mapSteer, toFrontend...).DNATPort(r.bind))
		return rules
	}
	if len(r.host.Local) > 0 { // see Host.Local
		add(r.rule().Protocol(unix.IPPROTO_SCTP).FromLocal().Map(mapSteer, toFrontend...).DNATPort(r.host.Local[0]))
	}
	add(r.rule().Map(mapSteer, toFrontend...).Redirect())
	return rules
}

// undefined makes the rules for what no entry has: a port of a cluster IP is refused, and other addresses of
// ServiceCIDRs are dropped.
func (r *nftRules) undefined() (rules []nft.Rule) {
	for _, p := range []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP} { // ICMP to a cluster IP goes on
		rules = append(rules, r.rule().Protocol(netfilter.ProtocolNumber(p)).In(nftClusterIPs, nft.Destination).
			GotoChain("refuse").Rule("no such port"))
	}
	return append(rules, r.rule().NotIn(nftClusterIPs, nft.Destination).Drop().Rule("no such Service"))
}

// guard makes the rules that reject what comes straight to a proxy port. The address of a
// packet does not change, and so conntrack does not call it translated, if a frontend is on
// an address of the node and has the proxy port's own number. Asking for the proxy port is
// asking for the frontend then.
func (r *nftRules) guard() []nft.Rule {
	return []nft.Rule{
		r.rule().In(nftProxyPorts, toPort...).Translated(false).NotIn(nftAccept, toFrontend...).
			NotIn(nftAccept+nodeSuffix, toPort...).GotoChain("refuse").Rule("straight to a proxy port"),
	}
}
