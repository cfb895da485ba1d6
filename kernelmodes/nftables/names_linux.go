package nftables

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// table and queued are the names of ours in each family, and trial of one that is tried.
const (
	table  = "sluice-services"
	trial  = "sluice-services-trial"
	queued = "sluice-queued" // with Ask
)

// Names of the sets and maps that are always there.
const (
	setServices  = "services"            // addresses: to the chain of a Service
	setNodePorts = "node-ports"          // the same for every address of the node
	setClusters  = "clusters"            // cluster IPs with ports: whether to masquerade
	setSame      = "same"                // endpoints, each with itself
	setUnserved  = "unserved"            // addresses that nat leaves alone, at least for some clients
	setNoNode    = "unserved-node-ports" // the same for every address of the node
	setIPs       = "cluster-ips"
	setUDPPorts  = "udp-node-ports"     // node ports of sockets that may answer too late
	setUDPAddrs  = "udp-node-addresses" // the same with an address
)

// Names of the chains that are always there. Base chains are called like their hooks.
const (
	chainPre      = "prerouting"
	chainOut      = "output"
	chainPreLeft  = "prerouting-left"
	chainOutLeft  = "output-left"
	chainPost     = "postrouting"
	chainAgain    = "again" // looks for a Service once more
	chainClusters = "clusters"
	chainMark     = "mark"         // to be masqueraded
	chainOutside  = "outside"      // to be masqueraded unless of a pod
	chainUnserved = "unserved"     // new flows that nat has left
	chainReject   = "reject"       // says that no process listens
	chainDrop     = "drop"         // says nothing
	chainDropElse = "drop-outside" // but to loopback, which is another's
)

// Prefixes of the maps of endpoints. A number is that of a rotation, of which each map has every 256th: for
// each chain that uses a map the kernel walks all of its elements (nf_tables_bind_set).
const (
	setEndpoints = "endpoints-" // number and turn: where to
	setRotation  = "rotation-"  // number and turn: to the chain of an endpoint, with affinity
	shards       = 256
)

// Prefixes of the chains of one Service, and of the set of an endpoint's clients.
const (
	prefixCluster  = "svc-" // backends for policy Cluster
	prefixLocal    = "svl-" // backends for policy Local
	prefixExternal = "ext-" // clients of external addresses
	prefixSources  = "fw-"  // clients of load-balancer addresses with ranges
	prefixEndpoint = "ep-"  // an endpoint with affinity
	prefixClients  = "af-"  // its clients
)

// hooks are the base chains. All are of nat, which sees the first packet of a flow alone, so that others cost nothing.
// They come after steering and before iptables (man nft, "Standard priority names"): a new flow takes the path that
// comes first. What no path has translated is left to the last ones, before the filters of a firewall: so a client of
// what is not there is refused where the firewall would drop.
var hooks = map[string]*nft.Hook{
	chainPre:     {Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: dstnat - 5},
	chainOut:     {Type: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: dstnat - 5},
	chainPost:    {Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: srcnat - 5},
	chainPreLeft: {Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: dstnat + 5},
	chainOutLeft: {Type: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: dstnat + 5},
}

const dstnat, srcnat = -100, 100

// sets are those that are always there.
var sets = []nft.Set{
	{Name: setServices, Key: frontend, Verdicts: true, Large: true},
	{Name: setNodePorts, Key: frontend[1:], Verdicts: true},
	{Name: setClusters, Key: frontend, Verdicts: true, Large: true},
	{Name: setSame, Key: []nft.Field{nft.Address, nft.Address}, Large: true},
	{Name: setUnserved, Key: frontend, Verdicts: true},
	{Name: setNoNode, Key: frontend[1:], Verdicts: true},
	{Name: setIPs, Key: frontend[:1], Large: true},
	{Name: setUDPPorts, Key: []nft.Field{nft.Port}},
	{Name: setUDPAddrs, Key: []nft.Field{nft.Address, nft.Port}},
}

var (
	frontend = []nft.Field{nft.Address, nft.Protocol, nft.Port}
	turn     = []nft.Field{nft.Mark, nft.Mark}

	// asked and port are what a packet has of these.
	asked = []nft.Load{nft.Destination, nft.L4Proto, nft.DestinationPort}
	port  = asked[1:]
)

// shard is the map that has the turns of a number.
func shard(prefix string, number uint32) nft.Set {
	s := nft.Set{Name: fmt.Sprintf("%s%02x", prefix, number%shards), Key: turn}
	if prefix == setRotation {
		s.Verdicts = true
	} else {
		s.Data = []nft.Field{nft.Address, nft.Port}
	}
	return s
}

// clientSet is the set of a backend's clients.
func clientSet(id lb.ID, backend netip.AddrPort) nft.Set {
	return nft.Set{Name: prefixClients + kernelmodes.Suffix(id, backend.String()), Key: frontend[:1], Dynamic: true,
		Size: maxClients}
}

// maxClients is how many the set of an endpoint may have: as kube-proxy's, which are of the kernel's default
// (NFT_SET_MAXSIZE of nft).
const maxClients = 65535

// numbers are those of transport protocols.
var numbers = map[lb.Protocol]uint8{lb.TCP: unix.IPPROTO_TCP, lb.UDP: unix.IPPROTO_UDP, lb.SCTP: unix.IPPROTO_SCTP}
