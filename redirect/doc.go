// Package redirect makes packets for a Service's frontends reach the sockets of a proxy on
// this node, returns which frontend a client asked for ([OriginalDst]), and removes every
// trace of itself ([Cleanup]).
//
// [NFTables] and [IPTables] do so by either packet filter, in one address family; a dual-stack
// node uses two with the same [Update]. They keep the entries, fold updates into them and write
// what an update changes. NFTables has one table, sluice-steering, with a constant number of
// rules; frontends of every protocol are elements of its sets and of the map steer:
//
//	nat prerouting, output (dstnat - 10) -> frontends: drops, redirects, or rejects without endpoints;
//	                                        node-ports: drops, or rejects without endpoints
//	nat prerouting, output (dstnat + 10) -> the same again, for what was read while a map was replaced;
//	                                        rejects other ports of cluster IPs, drops unused addresses of ServiceCIDRs
//	filter input                         -> rejects what comes straight to a proxy port
//
// Chains of nat see the first packet of a flow alone, so that others meet the last one only. An
// update is one transaction; one that changes who may ask, up to four. Unlike IPTables it cannot
// let packets past the firewall of the node, since what one table accepts another may drop: where
// INPUT drops by default, the firewall is to accept what is translated (ct status dnat) and the
// node ports, as with kube-proxy's mode nftables. Before Linux 6.17 a client may lose a packet at
// the moment when the source ranges that admit it are replaced by ones that overlap them.
//
// # Guarantees
//
// An entry that stays stays in effect throughout a change. A client that may ask neither
// before nor after a change is not answered in between (without sets it may be, for a
// moment, if a frontend ceases to be redirected and to be restricted at once). Nothing is
// removed when the process ends, but with a [NewLease] rules match nothing when it is not renewed any more; that
// needs sets. [IPTables.Verify] compares what the kernel holds with what
// was written, and the next Sync repairs it.
//
// Netfilter takes datagrams between two ports for one flow, which conntrack keeps on the path of
// its first datagram. Sync leaves that as it is: the caller has flows.Stale delete the entries of
// flows whose first datagram, sent now, would take another path.
//
// NFTables needs Linux 5.13 with nf_tables (nat, redirect, reject, ct, fib), nf_conntrack_netlink,
// CAP_NET_ADMIN and CAP_NET_RAW. IPTables needs Linux with iptables 1.8 of either backend, xt_conntrack, xt_comment,
// xt_addrtype, xt_set or xt_multiport, REDIRECT or DNAT, REJECT, nf_conntrack_netlink,
// CAP_NET_ADMIN and CAP_NET_RAW; before Linux 6.6 also sysctl.DisableEarlyDemux.
package redirect
