package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-lb/sluice/lb"
)

// Names of the chains that are always there. No other chain of Sluice begins with one
// of the prefixes of ours.
const (
	chainServices  = "SLUICE-SERVICES"     // nat: whose Service is it?
	chainAddresses = "SLUICE-ADDR"         // nat: exact addresses
	chainNodePorts = "SLUICE-NODE"         // nat: node ports
	chainMark      = "SLUICE-MARK-MASQ"    // nat: to be masqueraded
	chainOutside   = "SLUICE-MARK-OUTSIDE" // nat: to be masqueraded unless of a pod
	chainPost      = "SLUICE-POSTROUTING"  // nat: masquerades
	chainHairpin   = "SLUICE-HAIRPIN"      // nat: masquerades who asks himself
	chainUnserved  = "SLUICE-UNSERVED"     // filter: what nat has left
	chainNoAddress = "SLUICE-NOADDR"       // filter: exact addresses
	chainNoNode    = "SLUICE-NONODE"       // filter: node ports
	chainForward   = "SLUICE-FORWARD"      // filter: lets our flows through
	chainStale     = "SLUICE-STALE"        // filter: what sockets of node ports say too late
)

// Prefixes of the chains of one Service, and of buckets.
const (
	prefixCluster  = "SLUICE-SVC-" // backends for policy Cluster
	prefixLocal    = "SLUICE-SVL-" // backends for policy Local
	prefixExternal = "SLUICE-EXT-" // clients of external addresses
	prefixSources  = "SLUICE-FW-"  // clients of load-balancer addresses with ranges
	prefixProbe    = "SLUICE-TRY-" // tried at start and removed at once
)

// tables are those that we write to, with the chains that are always there.
var tables = []struct {
	name   string
	chains []string
}{
	{"nat", []string{chainServices, chainAddresses, chainNodePorts, chainMark, chainOutside, chainPost, chainHairpin}},
	{"filter", []string{chainUnserved, chainNoAddress, chainNoNode, chainForward, chainStale}},
}

// ours reports whether a chain is one of this package.
func ours(table, chain string) bool {
	if !strings.HasPrefix(chain, "SLUICE-") {
		return false
	}
	for _, t := range tables {
		if t.name != table {
			continue
		}
		for _, c := range t.chains {
			if chain == c || strings.HasPrefix(chain, c+"-") {
				return true
			}
		}
	}
	for _, p := range []string{prefixCluster, prefixLocal, prefixExternal, prefixSources, prefixProbe} {
		if strings.HasPrefix(chain, p) {
			return true
		}
	}
	return false
}

// suffix names a Service port, or a backend of it, within the 28 characters of a
// chain's name (xt_table_info in the kernel): 80 bits of a hash.
func suffix(id lb.ID, backend string) string {
	sum := sha256.Sum256([]byte(id.String() + " " + id.Protocol.String() + " " + backend))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

// jump is a rule in a chain of the kernel that leads to a chain of ours.
type jump struct {
	table, from, to string
	newOnly         bool // only the first packet of a flow; nat sees no other anyway
	first           bool // no rule of others may be before it
	comment         string
}

// jumps are put first where they are missing. In the chains of nat where packets come
// in they stay before all rules of others, so that these cannot take away what is for
// a Service. Those of package redirect, which begin with the same prefix, may be before
// them: it is they that have a Service which is moving. Elsewhere those who came later
// may be first, as network policies must be in FORWARD, where we accept.
var jumps = []jump{
	{table: "nat", from: "PREROUTING", to: chainServices, first: true, comment: "sluice: Services"},
	{table: "nat", from: "OUTPUT", to: chainServices, first: true, comment: "sluice: Services"},
	{table: "nat", from: "POSTROUTING", to: chainPost, comment: "sluice: masquerade"},
	{table: "filter", from: "INPUT", to: chainUnserved, newOnly: true, comment: "sluice: Services without backends"},
	{table: "filter", from: "FORWARD", to: chainUnserved, newOnly: true, comment: "sluice: Services without backends"},
	{table: "filter", from: "FORWARD", to: chainForward, comment: "sluice: let Services through"},
	{table: "filter", from: "OUTPUT", to: chainUnserved, newOnly: true, comment: "sluice: Services without backends"},
	{table: "filter", from: "OUTPUT", to: chainStale, newOnly: true, comment: "sluice: node ports that have moved"},
}

// spec returns the jump without -A and its chain.
func (j jump) spec() string {
	s := ""
	if j.newOnly {
		s = "-m conntrack --ctstate NEW "
	}
	return s + fmt.Sprintf("-m comment --comment %q -j %s", j.comment, j.to)
}

// bucket is a chain that holds the rules of a part of all addresses. Rules are read one
// after the other, so that a packet of a flow that is new reads some 1/64 of them.
type bucket struct {
	table, from string
	match       string // leads there from the chain that it is of
	name        string
}

// buckets is into how many parts addresses are divided: by their last bits, which
// differ most, as cluster IPs are given out of one range.
const buckets = 64

// bucketOf returns where a rule for f belongs.
func bucketOf(table, addresses, nodePorts string, f lb.Frontend) bucket {
	addr, port := f.Addr.Addr(), f.Addr.Port()
	if addr.IsUnspecified() {
		first := port &^ (buckets - 1)
		proto := protocol(f.Protocol)
		return bucket{table, nodePorts, fmt.Sprintf("-p %s -m %s --dport %d:%d", proto, proto, first, first+buckets-1),
			fmt.Sprintf("%s-%s-%d", nodePorts, f.Protocol, first)}
	}
	b := addr.AsSlice()
	last := b[len(b)-1] % buckets
	var value, mask [16]byte
	value[len(b)-1], mask[len(b)-1] = last, buckets-1
	v, _ := netip.AddrFromSlice(value[:len(b)])
	m, _ := netip.AddrFromSlice(mask[:len(b)])
	return bucket{table, addresses, fmt.Sprintf("-d %s/%s", v, m), fmt.Sprintf("%s-%02d", addresses, last)}
}

// staleBucket returns where the rule for what is sent from a UDP node port belongs.
func staleBucket(port uint16) bucket {
	first := port &^ (buckets - 1)
	return bucket{"filter", chainStale, fmt.Sprintf("-p udp -m udp --sport %d:%d", first, first+buckets-1), fmt.Sprintf("%s-%d", chainStale, first)}
}

// protocol is how iptables spells a protocol.
func protocol(p lb.Protocol) string { return strings.ToLower(p.String()) }
