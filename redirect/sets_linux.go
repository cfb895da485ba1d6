package redirect

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// Names of sets, without their prefix. Node ports are apart (verdict.nodeSet), since a
// member of hash:ip,port has one address. A bitmap holds no protocol, so that theirs have
// it in the name, TCP or UDP. A bitmap matches no packet of another protocol
// (ip_set_get_ip_port), so that SCTP's node ports and proxy ports have rules.
const (
	setInside     = "INSIDE"     // where this node's pods are
	setAllowed    = "ALLOWED"    // restricted frontends and their clients
	setRestricted = "RESTRICTED" // restricted frontends
	setDrop       = "DROP"       // frontends that never answer
	setOutside    = "OUTSIDE"    // frontends that do not answer other hosts
	setUDPPorts   = "UDP-PORTS"  // UDP proxy ports
	setAccept     = "ACCEPT"     // frontends that the proxy listens on itself
	setRefuse     = "REFUSE"     // frontends without endpoints
	setTCP        = "TCP"        // TCP frontends
	setKnown      = "KNOWN"      // all frontends but node ports
	setClusterIPs = "CLUSTER-IPS"
	setCIDRs      = "CIDRS" // where cluster IPs are from
)

// setGroups has all sets in the order in which they grow: the sets of each of the three
// groups after those of the one before. They shrink the other way round. So no client that
// is served neither before nor after a change is served in between, nor the other way
// round: those that may ask are known before others are dropped, and these before anything
// is redirected.
var setGroups = [][]string{
	{setInside, setAllowed, setKnown},
	slices.Concat([]string{setRestricted, setClusterIPs}, verdictDrop.sets(), verdictOutside.sets()),
	slices.Concat([]string{setUDPPorts}, verdictAccept.sets(), verdictRefuse.sets(), []string{setTCP, setCIDRs}),
}

// setType returns the type of a set.
func setType(name string) string {
	switch name {
	case setTCP, setRefuse, setDrop, setOutside, setAccept, setRestricted, setKnown:
		return netfilter.HashIPPort
	case setAllowed:
		return netfilter.HashIPPortNet
	case setInside, setClusterIPs, setCIDRs:
		return netfilter.HashNet
	}
	return netfilter.BitmapPort
}

// kernelSet returns the set of a name without its prefix.
func (s shape) kernelSet(name string) netfilter.Set {
	return netfilter.Set{Name: s.set(name), Type: setType(name), IPv6: s.ipv6}
}

// layout says what in netfilter is ours.
func (s shape) layout(counters *netfilter.Counters) netfilter.Layout {
	l := netfilter.Layout{IPv6: s.ipv6, Prefix: chainPrefix, Own: own, Counters: counters,
		Lease: s.lease}
	for _, t := range tables {
		l.Tables = append(l.Tables, netfilter.Table{Name: t.name})
	}
	for i, names := range setGroups {
		g := netfilter.SetGroup{Late: i == 0} // ALLOWED and KNOWN are matched last
		for _, name := range names {
			g.Sets = append(g.Sets, s.kernelSet(name))
		}
		if s.sets {
			l.Sets = append(l.Sets, g)
		}
	}
	return l
}

// members calls f with each member of a set that an entry needs, and the set's name
// without its prefix.
func (e Entry) members(f func(set string, m netfilter.Member)) {
	exact := netfilter.MemberOf(e.Frontend)
	for _, x := range verdicts {
		switch {
		case !x.has(e):
		case !nodePort(e.Frontend.Addr):
			f(x.set, exact)
		case e.Frontend.Protocol != lb.SCTP:
			f(x.nodeSet(e.Frontend.Protocol), netfilter.Member{Port: e.Frontend.Addr.Port()})
		}
	}
	switch {
	case e.Action != Redirect:
	case e.Frontend.Protocol == lb.TCP:
		f(setTCP, exact)
	case e.Frontend.Protocol == lb.UDP:
		f(setUDPPorts, netfilter.Member{Port: e.Port})
	}
	if !nodePort(e.Frontend.Addr) {
		f(setKnown, exact)
	}
	if e.ClusterIP {
		ip := exact.Addr
		f(setClusterIPs, netfilter.Member{Net: netip.PrefixFrom(ip, ip.BitLen())})
	}
	if e.Sources != nil {
		f(setRestricted, exact)
	}
	for _, source := range e.Sources {
		m := exact
		m.Net = source
		f(setAllowed, m)
	}
}
