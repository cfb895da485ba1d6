package iptables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// prefix is how the names of all chains of Sluice begin.
const prefix = "SLUICE-"

// Names of the chains that are always there. No other chain of Sluice begins with one
// of the prefixes of ours.
const (
	chainServices  = "SLUICE-SERVICES"     // nat: all packets
	chainAddresses = "SLUICE-ADDR"         // nat: exact addresses
	chainNodePorts = "SLUICE-NODE"         // nat: node ports
	chainMark      = "SLUICE-MARK-MASQ"    // nat: to be masqueraded
	chainOutside   = "SLUICE-MARK-OUTSIDE" // nat: to be masqueraded unless of a pod
	chainPost      = "SLUICE-POSTROUTING"  // nat: masquerades
	chainHairpin   = "SLUICE-HAIRPIN"      // nat: masquerades endpoints that get themselves
	chainUnserved  = "SLUICE-UNSERVED"     // filter: what nat has left
	chainNoAddress = "SLUICE-NOADDR"       // filter: exact addresses
	chainNoNode    = "SLUICE-NONODE"       // filter: node ports
	chainForward   = "SLUICE-FORWARD"      // filter: lets our flows through
	chainStale     = "SLUICE-STALE"        // filter: late answers of sockets on node ports
)

// Prefixes of the chains of one Service, and of buckets.
const (
	prefixCluster  = "SLUICE-SVC-" // backends for policy Cluster
	prefixLocal    = "SLUICE-SVL-" // backends for policy Local
	prefixExternal = "SLUICE-EXT-" // clients of external addresses
	prefixSources  = "SLUICE-FW-"  // clients of load-balancer addresses with ranges
	prefixProbe    = "SLUICE-TRY-" // tried at start and removed at once
)

// always has the chains that are always there, of each table that we write to.
var always = map[string][]string{
	"nat":    {chainServices, chainAddresses, chainNodePorts, chainMark, chainOutside, chainPost, chainHairpin},
	"filter": {chainUnserved, chainNoAddress, chainNoNode, chainForward, chainStale},
}

// inUse reports whether a chain is one of this package, and not one that is tried: that may be another process's, which
// starts while this one serves.
func inUse(table, chain string) bool {
	isOrPart := func(c string) bool { return chain == c || strings.HasPrefix(chain, c+"-") }
	begins := func(p string) bool { return strings.HasPrefix(chain, p) }
	return slices.ContainsFunc(always[table], isOrPart) || slices.ContainsFunc([]string{
		prefixCluster, prefixLocal, prefixExternal, prefixSources,
	}, begins)
}

// ours reports whether a chain is one of this package, in use or tried.
func ours(table, chain string) bool {
	return inUse(table, chain) || strings.HasPrefix(chain, prefixProbe)
}

// jumps are put first where they are missing, but after those of package redirect, which begin with the same prefix:
// Services that are moving are redirected. Other programs may put rules before them later, as network policies must be
// in FORWARD, where we accept.
var jumps = []netfilter.Jump{
	{Table: "nat", From: "PREROUTING", To: chainServices, Comment: "sluice: Services"},
	{Table: "nat", From: "OUTPUT", To: chainServices, Comment: "sluice: Services"},
	{Table: "nat", From: "POSTROUTING", To: chainPost, Comment: "sluice: masquerade"},
	{Table: "filter", From: "INPUT", To: chainUnserved, NewOnly: true, Comment: "sluice: Services without endpoints"},
	{Table: "filter", From: "FORWARD", To: chainUnserved, NewOnly: true, Comment: "sluice: Services without endpoints"},
	{Table: "filter", From: "FORWARD", To: chainForward, Comment: "sluice: let Services through"},
	{Table: "filter", From: "OUTPUT", To: chainUnserved, NewOnly: true, Comment: "sluice: Services without endpoints"},
	{Table: "filter", From: "OUTPUT", To: chainStale, NewOnly: true, Comment: "sluice: node ports that have moved"},
}

// layout is what of a family is ours. The filter table rejects only what nat leaves alone, so
// that an address is answered by one of them at every moment if its answer is there before
// nat's goes, and goes after nat's has come: it is the outer table.
func layout(ipv6 bool) netfilter.Layout {
	return netfilter.Layout{
		IPv6: ipv6, Prefix: prefix, Own: inUse, Tables: []netfilter.Table{{Name: "nat"}, {Name: "filter", Outer: true}},
	}
}

// remains is the layout with what a process that was killed may have tried last.
func remains(ipv6 bool) netfilter.Layout {
	l := layout(ipv6)
	l.Own = ours
	return l
}

// buckets is into how many parts addresses, and ports, are divided.
const buckets = 64

// bucketOf returns where a rule for f belongs. Rules are read one after the other, so that
// the first packet of a flow reads some 1/64 of them.
func bucketOf(table, addresses, nodePorts string, f lb.Frontend) netfilter.Bucket {
	addr, port := f.Addr.Addr(), f.Addr.Port()
	if addr.IsUnspecified() {
		return portBucket(table, nodePorts, fmt.Sprintf("%s-%s", nodePorts, f.Protocol), f.Protocol, "dport", port)
	}
	return netfilter.BucketOf(table, addresses, addr, buckets)
}

// portBucket is a bucket of 64 ports; side is which of a packet's.
func portBucket(table, from, name string, p lb.Protocol, side string, port uint16) netfilter.Bucket {
	first := port &^ (buckets - 1)
	name = fmt.Sprintf("%s-%d", name, first)
	proto := netfilter.ProtocolName(p)
	lead := fmt.Sprintf("-p %s -m %[1]s --%s %d:%d -j %s", proto, side, first, first+buckets-1, name)
	return netfilter.Bucket{Table: table, Chain: name, From: from, Lead: lead}
}
