// Package ipvs forwards Services by ipvs, the load balancer of the Linux kernel, with the
// semantics of kube-proxy's mode of that name, and more of those of its iptables mode than
// that has. An [Engine] serves one address family. testdata/listing.txt has what ipvsadm, ip
// and ipset print of one Service.
//
// Each address of a Service has a virtual server, and a node port one for each address of the
// node. Local routes make the kernel take packets to addresses of Services as for this node,
// which is where ipvs sees them ("ip route show table local proto 83"). The rest is done by
// rules that never change and by sets that name the addresses they are for: chains begin with
// SLUICE-IPVS-, sets with SLUICE-IPVS4- or SLUICE-IPVS6-.
//
//	mangle PREROUTING  -> IN -> ADMIT, MARK, NEAR    new flows only
//	mangle OUTPUT      -> OUT -> ADMIT, MARK, NEAR   new flows only
//	filter INPUT       -> INPUT -> REFUSE          new flows only
//	filter OUTPUT      -> REFUSE, STALE            new flows only
//	filter FORWARD     -> FORWARD
//	nat    POSTROUTING -> POST
//
// ADMIT drops clients that are not admitted (loadBalancerSourceRanges), and all where policy
// Local of a cluster IP has no endpoint here. MARK marks connections that POST masquerades:
// of external addresses with policy Cluster, of cluster IPs but for pods, and of a pod that
// gets itself. NEAR gives clients on this node, of an external address with policy Local, the
// mark of a second virtual server with all endpoints; other hosts get those of this node.
// REFUSE rejects what is sent to a Service without endpoints, and to any other port of an
// address of ours. STALE drops what a socket on a UDP node port still sends to clients that
// ipvs has taken over. INPUT and FORWARD let the rest through.
//
// A change is a few netlink messages and no process, whatever the number of Services: what a
// Service needs is rendered by a pure function, and counted, since Services share addresses
// and backends (state). Only what is named by the sets SERVERS and NUMBERS is ours and removed;
// they are written before a virtual server and deleted after it, so that a crash leaves none
// without an owner. A backend that goes gets weight 0 and is removed with its last connection,
// which Sync and Verify check; backends of UDP go at once, with their conntrack entries.
//
// Limits: loopback addresses have no node ports, since ipvs leaves their packets alone. Clients
// on this node of an address with policy Local and affinity are balanced by their address (mh),
// since the kernel does not translate ports of persistent connections to marks. Templates, which
// are ipvs's memory of clients, cannot be written ([Engine.Remember]). The upper half of packet
// marks is overwritten for clients on this node of addresses with policy Local. Where pods
// share a bridge, br_netfilter must be on.
package ipvs
