// Package iptables forwards Services by rules of iptables, without a process of ours:
// all of what kube-proxy's mode of the same name does, in chains of our own. An [Engine] has
// one address family. Package trace computes where a packet goes by the rules.
//
// testdata/rules.txt has the rules of a Service with a cluster IP, a node port and two
// endpoints, as iptables-save prints them. A packet to an address of a Service goes this way:
//
//	nat PREROUTING, OUTPUT -> SERVICES -> ADDR -> ADDR-16  -> SVC -> DNAT to an endpoint
//	                                   -> NODE -> NODE-TCP-30080 -> EXT -> SVC or SVL
//	nat POSTROUTING        -> POSTROUTING -> HAIRPIN       masquerades
//	filter INPUT, FORWARD, OUTPUT -> UNSERVED              rejects and drops, new flows only
//	filter FORWARD         -> FORWARD                      lets flows through
//	filter OUTPUT          -> STALE                        late answers, new flows only
//
// Addresses are divided by their last six bits, and node ports by 64, into buckets that are
// there while they have rules, so that the first packet of a flow reads some 220 rules of
// 10,000 Services. SVC chooses among the endpoints for policy Cluster, SVL among those for
// Local. Addresses that are not the cluster IP pass EXT first, which masquerades what must be
// answered by this node and sends pods of this node to SVC whatever the policy; those with
// source ranges pass FW before, which lets admitted clients through. An endpoint that gets to
// itself is found by comparing source and destination (xt_bpf), so that endpoints need no chain
// of their own, as they do in kube-proxy: the number of chains is what iptables-nft is slow with.
//
// With affinity a client goes first to the endpoint where the match recent has it. Its lists hold 100
// clients for each endpoint, unless xt_recent was loaded with another ip_list_tot. They
// stay when rules are written anew, and go when the Service leaves this mode, for which
// [Engine.Clients] reads them and [Engine.Remember] writes them.
//
// A change writes the chains of the Services that changed, and their rules in buckets one by
// one, by one iptables-restore. An address is answered at every moment, by nat or by filter.
// Established connections go on, since nat sees the first packet only. Conntrack entries of UDP
// flows to an endpoint that is no longer one of the address are deleted, and those of SCTP to one
// that the Service has lost.
//
// No socket is opened for a node port here. The caller may hold one: rules come before it but
// for packets by loopback, so that it serves a node port on 127.0.0.1 and ::1, without
// route_localnet, and keeps the port from other programs.
//
// It needs iptables 1.8 or later of either backend, xt_statistic, xt_recent, if possible
// xt_bpf, xt_conntrack, xt_addrtype, xt_mark, xt_comment, DNAT, MASQUERADE, MARK and REJECT;
// forwarding enabled; CAP_NET_ADMIN and CAP_NET_RAW in the network namespace.
package iptables
