// Package ipvs forwards Services by ipvs, the load balancer of the Linux kernel, with
// the semantics of kube-proxy's mode of that name, and more of those of its iptables
// mode than that has.
//
// An [Engine] serves one address family; a dual-stack node uses two of them with the
// same Services. What it needs of the kernel, and whether it is there, [Engine.Probe]
// says.
//
// # What it writes
//
// For default/http with cluster IP 10.96.0.80, node port 30080 and two endpoints, ipset,
// ip and ipvsadm then say on the node 192.0.2.10 (from the run of a test):
//
//	IP Virtual Server version 1.2.1 (size=4096)
//	Prot LocalAddress:Port Scheduler Flags
//	  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
//	TCP  192.0.2.10:30080 rr
//	  -> 10.244.1.10:8080             Masq    1      0          0
//	  -> 10.244.1.11:8080             Masq    1      0          0
//	TCP  10.96.0.80:80 rr
//	  -> 10.244.1.10:8080             Masq    1      0          0
//	  -> 10.244.1.11:8080             Masq    1      0          0
//
//	local 10.96.0.80 scope host src 192.0.2.10
//
//	Members:
//	10.96.0.80,tcp:80
//	192.0.2.10,tcp:30080
//
// There is a virtual server for each address of a Service, and for a node port one for
// each address of the node. Routes of the table local at the interface
// sluice-ipvs have the kernel take packets to the addresses of Services as for this
// node, which is where ipvs looks at them. They are not addresses of the interface, as
// with kube-proxy: the node would ask a Service from the very address it asks for, and
// its sockets would be cut off when the address goes, also those that somebody else
// serves by then. The interface is a dummy, or where the kernel has no such type a veth with
// both ends here, or a bridge with no ports.
//
// The rest is done by rules that are always the same, and sets that say for which
// addresses. Names of chains begin with "SLUICE-IPVS-", those of sets with
// "SLUICE-IPVS4-" or "SLUICE-IPVS6-":
//
//	mangle PREROUTING  -> IN -> ASK, MARK, NEAR    new flows only
//	mangle OUTPUT      -> OUT -> ASK, MARK, NEAR   new flows only
//	filter INPUT       -> INPUT -> REFUSE          new flows only
//	filter OUTPUT      -> REFUSE, STALE            new flows only
//	filter FORWARD     -> FORWARD
//	nat    POSTROUTING -> POST
//
// ASK drops those who may not ask (loadBalancerSourceRanges), and all where policy
// Local of a cluster IP has no endpoint here. MARK marks those whose source is to
// become this node, and POST does that: clients of external addresses with policy
// Cluster, clients of cluster IPs that are not pods (see [Engine]), a pod that gets
// itself.
//
// REFUSE rejects at once what is asked of a Service without endpoints, with a reset or
// an ICMP error, and what is asked of an address of ours at any other port: what
// listens on all addresses of the node is not meant to be reached there. INPUT lets the
// rest in, and FORWARD the answers, whatever the node's firewall says of new flows.
//
// # Node ports that somebody listens on
//
// A node port may have a socket on this node, as a Service has that moves here from user
// space. ipvs takes every packet from the moment on that there is a virtual server, and
// until that has a backend, which is another message to the kernel, it refuses. So for the
// time of both messages DROP lets nobody begin anything: a SYN of that time is sent again
// a second later. On the way back the node itself becomes a backend before the others
// lose their weights.
//
// UDP has flows that conntrack has as the socket's; ipvs cannot masquerade those, so that
// answers would leave by other ports or not come back. Therefore they are forgotten before
// there is the virtual server, nobody begins a new one meanwhile, and STALE drops what the
// socket still answers. Conntrack cannot be asked for the flows of a port but by a walk
// through its whole table, two for a port, of which the kernel since 5.8 names the entries
// that matter, and before that all. A datagram of that time is lost, and to a program on
// this node sending it fails with EPERM.
//
// # Policy Local
//
// Where policy Local of an external address holds, other hosts get the endpoints of
// this node and clients on it any (short-circuit), as with kube-proxy's iptables mode.
// Its ipvs mode cannot do this, since a virtual server has one set of backends. Here
// NEAR gives the first packet of a client on this node the number of its Service as
// mark, in the upper half, from a set whose members carry marks, and ipvs has a second
// virtual server for that mark. IN drops other hosts' packets where no endpoint is
// here.
//
// The kernel does not translate the port of persistent connections to virtual servers
// that are marks. So clients on this node of an address with policy Local and ClientIP
// affinity are balanced by hashing their address (mh) instead: they stay where they are
// as long as the endpoints do.
//
// # Whose what is
//
// Only what is ours is changed or removed. A virtual server is ours if it is in the set
// SERVERS, or its mark in the set NUMBERS; both are written before the server is made
// and after it is removed, so that a crash leaves none behind that nobody knows of,
// and an engine that begins anew goes on with what is there. One that is at the address
// of a Service already becomes ours: this is how kube-proxy's mode is taken over.
// Virtual servers in ExcludeCIDRs are not removed, even if they are ours.
//
// # Ending
//
// A backend that is to go gets weight 0: its connections go on and new ones go
// elsewhere. It is removed when ipvs counts none any more, active or inactive, as one
// half of a connection may go on after the other has ended; one that ended in order
// counts for two minutes. Sync and Verify look. The virtual server and the address of a
// Service that is to go stay as long; new connections to it come to this node meanwhile,
// so that somebody else may have them who listens there or redirects them. UDP has no
// end to wait for: its backends go at once, and the conntrack entries of their clients
// with them, so that the next datagram finds another.
//
// sh and mh would choose backends of weight 0, and so always have the flag sh-fallback
// or mh-fallback.
//
// # Limits
//
// Loopback addresses have no node ports: the kernel lets no packet from there leave. Nor
// have they with kube-proxy's mode. Whoever uses an Engine may hold a socket on a node
// port, and Sluice does: ipvs leaves alone what comes by loopback, so that it is
// served in user space.
// Clients behind ipvs see no INVALID packets dropped as with kube-proxy's iptables mode;
// ipvs does not forward them. A pod must not answer another past this node: where pods
// share a bridge, br_netfilter must be on, as for kube-proxy, and Probe warns if it is
// not. Affinity lasts at least as long as a client has connections.
//
// Clients with affinity cannot be brought along from another path ([Engine.Remember]):
// ipvs makes the templates that remember them from their connections, and netlink has no
// message for it. Its backup daemon would take them, but from the network: it is one UDP
// socket for each network namespace, which whoever synchronises directors needs for
// himself, it believes whoever can send to it, the firewall of the node is before it, and
// what is lost on the way nobody is told. To remember a client is not worth to let others
// write into the table of connections.
//
// There may be marks of others in the upper half of packet marks; those of the first
// packet of a client on this node to an address with policy Local are overwritten.
//
// # Cost
//
// A change of a Service is a few netlink messages and no process, whatever the number
// of Services, and a comparison of pointers for each Service that has not changed. To this
// end it is kept how many Services want each member of a set and each address; what a
// Service wanted before is not kept, but rendered again and taken back. All is rendered
// anew when the node's addresses or pod CIDRs change, and while a Service has an exact
// address that is another's node port. New virtual and real servers are made in batches,
// many with two system calls. Verify reads all virtual servers, one message for each.
// Connections of virtual servers of before go on after a restart, since nothing is removed
// when the process ends. [Cleanup] removes it all.
//
// The package starts no goroutine that outlives a call.
package ipvs
