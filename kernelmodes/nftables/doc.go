// Package nftables forwards Services by nf_tables, without any program: what kube-proxy's mode of the
// same name does, in a table for each address family, sluice-services. An [Engine] has one family.
// testdata/rules.txt is such a table as nft lists it. A packet to an address of a Service goes this way:
//
//	prerouting, output -> clusters -> outside or mark   cluster IPs: to be masqueraded or not
//	                   -> services -> svc               a map by address, protocol and port
//	                   -> node-ports -> ext -> svc      a map by protocol and port
//	svc                -> endpoints-..                  a map by number and turn; DNAT
//	postrouting                                         masquerades
//	prerouting-left,       -> again                     the same maps
//	output-left            -> unserved                  rejects and drops, new flows only
//
// Addresses are elements of maps, so that a packet passes the same few rules however many
// Services there are. The chain svc is for policy Cluster and svl for policy Local. Addresses that
// are not the cluster IP pass ext first, which masquerades what must be answered by this node and
// sends pods of this node to svc whatever the policy; those with source ranges pass fw before,
// which lets admitted clients through. An endpoint that gets to itself is in the set "same".
//
// A chain svc has a rule that counts from 0 to n-1 (numgen inc) and looks for the turn in one of
// 256 maps that Services share: n connections get to n endpoints. A change costs the elements that differ,
// and this rule where the number of endpoints does. Counting begins anew then, at an endpoint
// chosen at random.
//
// With affinity each endpoint has a chain ep, which has the client remembered in a set of its own
// (65,535 clients, for the timeout of the Service); others are not remembered once it is full. The
// sets stay when the table is written anew, also by another process. A change is one transaction.
// A packet that is read meanwhile may miss an old map: the chain "again" finds its backend by the new
// rules. Established connections go on, since nat sees the first packet only. Conntrack entries of
// UDP flows to an endpoint that is no longer one of the address are deleted, and those of SCTP to one
// that the Service has lost.
//
// As with kube-proxy, this differs from mode iptables: new flows to a cluster IP at a port that it
// has not are rejected. Nothing is accepted on behalf of Services, since a base chain of
// nf_tables cannot keep another one from dropping: a firewall of the host must let through what is
// forwarded to endpoints. Packets that belong to no flow are not dropped; where routes are
// asymmetric, set nf_conntrack_tcp_be_liberal (--conntrack-tcp-be-liberal).
//
// With Ask the first packet of a flow goes to a queue before nat, and a chain svc begins with a map
// of what a process has put into its mark (ask_linux.go).
//
// No socket is opened for a node port here. The caller may hold one, which serves 127.0.0.1 and
// ::1: what comes by loopback is left to it.
//
// It needs Linux 5.13 or later with nf_tables (nft_ct, nft_fib, nft_masq, nft_nat, nft_numgen,
// nft_reject), forwarding enabled, and CAP_NET_ADMIN in the network namespace.
package nftables
