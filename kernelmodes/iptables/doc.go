// Package iptables forwards Services by rules of iptables, without a process of ours:
// all of what kube-proxy's mode of the same name does, in chains of our own.
//
// An [Engine] has one address family. Package trace tells where a packet goes by the
// rules.
//
// # What it writes
//
// A Service with a cluster IP, a node port and two endpoints, the first of which is on
// this node with pods in 10.244.1.0/24, is this in the nat table, as iptables-save
// prints it:
//
//	-A PREROUTING -m comment --comment "sluice: Services" -j SLUICE-SERVICES
//	-A OUTPUT -m comment --comment "sluice: Services" -j SLUICE-SERVICES
//	-A POSTROUTING -m comment --comment "sluice: masquerade" -j SLUICE-POSTROUTING
//	-A SLUICE-ADDR -d 0.0.0.16/0.0.0.63 -j SLUICE-ADDR-16
//	-A SLUICE-ADDR-16 -d 10.96.0.80/32 -p tcp -m tcp --dport 80 -m comment --comment "default/http cluster IP" -j SLUICE-SVC-34V2EX76YEXNUKZC
//	-A SLUICE-EXT-34V2EX76YEXNUKZC -m comment --comment "default/http masquerade external traffic" -j SLUICE-MARK-MASQ
//	-A SLUICE-EXT-34V2EX76YEXNUKZC -j SLUICE-SVC-34V2EX76YEXNUKZC
//	-A SLUICE-HAIRPIN -m bpf --bytecode "6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 65535,6 0 0 0" -m comment --comment "sluice: asks itself" -j MASQUERADE --random-fully
//	-A SLUICE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
//	-A SLUICE-MARK-OUTSIDE -s 10.244.1.0/24 -j RETURN
//	-A SLUICE-MARK-OUTSIDE -j MARK --set-xmark 0x4000/0x4000
//	-A SLUICE-NODE -p tcp -m tcp --dport 30080:30143 -j SLUICE-NODE-TCP-30080
//	-A SLUICE-NODE-TCP-30080 -p tcp -m tcp --dport 30080 -m comment --comment "default/http node port" -j SLUICE-EXT-34V2EX76YEXNUKZC
//	-A SLUICE-POSTROUTING -m conntrack --ctstate DNAT -j SLUICE-HAIRPIN
//	-A SLUICE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
//	-A SLUICE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
//	-A SLUICE-POSTROUTING -m comment --comment "sluice: answers must come back here" -j MASQUERADE --random-fully
//	-A SLUICE-SERVICES -j SLUICE-ADDR
//	-A SLUICE-SERVICES ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j SLUICE-NODE
//	-A SLUICE-SVC-34V2EX76YEXNUKZC -d 10.96.0.80/32 -p tcp -m tcp --dport 80 -m comment --comment "default/http cluster IP from elsewhere" -j SLUICE-MARK-OUTSIDE
//	-A SLUICE-SVC-34V2EX76YEXNUKZC -p tcp -m comment --comment "default/http" -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.244.1.10:8080
//	-A SLUICE-SVC-34V2EX76YEXNUKZC -p tcp -m comment --comment "default/http" -j DNAT --to-destination 10.244.2.10:8080
//
// and this in the filter table, where a Service without endpoints would have rules:
//
//	-A INPUT -m conntrack --ctstate NEW -m comment --comment "sluice: Services without backends" -j SLUICE-UNSERVED
//	-A FORWARD -m conntrack --ctstate NEW -m comment --comment "sluice: Services without backends" -j SLUICE-UNSERVED
//	-A FORWARD -m comment --comment "sluice: let Services through" -j SLUICE-FORWARD
//	-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "sluice: Services without backends" -j SLUICE-UNSERVED
//	-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "sluice: node ports that have moved" -j SLUICE-STALE
//	-A SLUICE-FORWARD -m comment --comment "sluice: belongs to no flow" -m conntrack --ctstate INVALID -j DROP
//	-A SLUICE-FORWARD -m comment --comment "sluice: masqueraded" -m mark --mark 0x4000/0x4000 -j ACCEPT
//	-A SLUICE-FORWARD -m comment --comment "sluice: the rest of a flow" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//	-A SLUICE-UNSERVED -j SLUICE-NOADDR
//	-A SLUICE-UNSERVED -m addrtype --dst-type LOCAL -j SLUICE-NONODE
//
// A packet to an address of a Service goes from its bucket (the addresses with the same
// last six bits, or 64 node ports) to SVC, which chooses among the endpoints for
// policy Cluster, or SVL, among those for Local. Buckets are made when they are needed,
// and make the way of a first packet through 10,000 addresses one of some 220 rules.
// Addresses that are not the cluster IP pass EXT first, which masquerades what must be
// answered by this node and sends pods of this node to SVC whatever the policy; those
// with source ranges pass FW before, which lets through who is in them. Who gets to
// himself is masqueraded, since he would not take an answer from himself for that of
// the Service: the program compares source and destination, so that no endpoint needs a
// chain of its own, as it has in kube-proxy. That makes a third of the rules, and a
// tenth of the chains, whose number is what iptables-nft is slow with.
//
// With affinity a client goes first where he was last, as long as the match recent
// remembers him there. Its lists hold 100 clients for each endpoint unless the module
// xt_recent was loaded with another ip_list_tot, and forget the one that was seen
// longest ago; ipvs and userspace have no such bound. What is remembered stays when a
// Service's rules are written anew, and goes when the Service leaves this mode, for which
// [Engine.Clients] reads it and [Engine.Remember] writes it.
//
// SLUICE-UNSERVED sees what nat has left as it was: it refuses what has no endpoints at
// all, and drops what policy Local or source ranges exclude. SLUICE-STALE drops what a
// socket on a UDP node port still sends to clients that are no longer its own.
//
// # Node ports
//
// No socket is opened for a node port here. Whoever uses an Engine may hold one: rules
// come before it, but for packets by loopback, which they leave alone. Sluice does hold
// one. So that a node port is served on 127.0.0.1 and ::1 as well, in user space, where
// kube-proxy needs route_localnet for the former and has nothing for the latter; another
// program cannot take it; and a Service that comes back to user space is served at once.
//
// # Changes
//
// A change writes the chains of the Services that have changed, and their rules in
// buckets one by one, in a single iptables-restore --noflush. An address is answered at
// every moment, by the nat table or by the filter table. Established connections go on,
// since nat is asked for the first packet only. Entries of conntrack are deleted for
// UDP flows to an endpoint that is no longer one of the address asked.
//
// # What it needs
//
// Linux with iptables 1.8 or later of either backend, xt_statistic, xt_recent, if possible xt_bpf,
// xt_conntrack, xt_addrtype, xt_mark, xt_comment, DNAT, MASQUERADE, MARK and REJECT;
// forwarding enabled; CAP_NET_ADMIN and CAP_NET_RAW in the network namespace.
package iptables
