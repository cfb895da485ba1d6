// Package redirect makes packets for a Service's frontends reach the sockets of
// a proxy on this node, tells the proxy which frontend a client asked for, and
// removes every trace of itself.
//
// [IPTables] steers by netfilter's nat table, in one address family; a
// dual-stack node uses two of them with the same [Plan]. [Conntrack] sets the
// size and the timeouts of the kernel's table of connections, which steering
// needs.
//
// [Addresses] needs no packet filter: it has the host hold the service addresses
// themselves, on Linux and on Windows, for a proxy to listen on. All that follows is
// about [IPTables].
//
// # What it writes
//
// Chains whose names begin with "SLUICE-", up to seven jumps to them, and sets whose
// names begin with "SLUICE4-" or "SLUICE6-":
//
//	mangle PREROUTING         -> SLUICE-PREROUTING -> SLUICE-OUTSIDE, SLUICE-DROP
//	mangle OUTPUT             -> SLUICE-DROP
//	nat    PREROUTING, OUTPUT -> SLUICE-STEER -> SLUICE-TCP, SLUICE-UDP -> SLUICE-UDP-00 to -31, SLUICE-SCTP
//	filter INPUT              -> SLUICE-INPUT -> SLUICE-REFUSE
//	filter FORWARD, OUTPUT    -> SLUICE-REFUSE
//
// PREROUTING is where packets of other hosts and of pods come in, OUTPUT where
// those of the node itself start. Each jump is the first rule of its chain. Those of
// mangle are there from the first frontend on at which not everybody may ask.
//
// Frontends are members of sets, so the number of rules does not depend on the
// number of services and a change of one service is one or a few netlink messages
// and no process. All TCP frontends go to one port, since a connection remembers
// what it was asked for ([OriginalDst]). A datagram does not, so that each UDP
// frontend has a port of its own and a rule of its own, and so has each of SCTP,
// whose ports no set of ports matches. Rules of UDP are divided among up to 32 chains by
// the last bits of the address, so that a packet, and a change, meets a few dozen of a
// thousand. Node ports are not steered: the proxy listens there.
//
// SLUICE-OUTSIDE and SLUICE-DROP drop those who may not ask, before nat changes
// what they ask for: clients elsewhere of what only this node answers
// (externalTrafficPolicy: Local), those who are not in loadBalancerSourceRanges,
// and everybody. SLUICE-INPUT accepts what was steered, or is for a port that the
// proxy listens on, so that a node whose INPUT policy is DROP still serves (the
// kernel modes of kube-proxy do not pass INPUT at all), and rejects a connection
// straight to a proxy port. SLUICE-REFUSE rejects at once what is asked of a
// service that has no endpoints. All of them see only the first packet of a flow:
// connections that are there go on.
//
// A kernel or an iptables without the set match gets rules for each frontend
// instead, with the same effect.
//
// # Guarantees
//
// A change runs one iptables-restore --noflush at the most (and with the
// legacy backend one iptables-legacy-save, to remember the result), and none
// if only members of sets changed. What stays in the plan stays steered
// throughout: chains are replaced in one transaction, members come before the
// rules that need them and go after. A packet that has begun to read sets or rules is
// waited for, some 10 ms, where who may ask changes, and only there. Who may ask a frontend neither before nor
// after a change is not answered in between. (Not so, for a moment, without
// sets and if the frontend ceases to be steered and to be restricted at once:
// each table is a transaction.) A failure leaves what is there, and the next
// Sync writes the whole again. Nothing is removed when the process ends, so
// that a restart loses nothing; [Cleanup] removes it all.
//
// Rules may be lost to iptables -F, nft flush ruleset, ipset destroy or a
// firewall that reloads, and others may put theirs before ours or among them.
// [IPTables.Verify] compares everything with what was written, and Sync mends
// it. That makes a canary, the chain that kube-proxy looks for to notice a
// flush, needless: most of this spares it. A program that insists on being
// first, as we do, takes turns with us, once each Verify: the caller's count
// of repairs tells.
//
// UDP clients have no connections, but netfilter takes the datagrams between
// two ports for one flow and sends them all where it sent the first. Sync
// deletes the conntrack entries of flows to frontends that changed if their
// first datagram, sent now, would go elsewhere or nowhere, and no others.
//
// Each run of iptables waits for the xtables lock of the legacy backend for five
// seconds at the most; the error then names the process that holds it, if that can
// be seen from here.
//
// The package starts no goroutine that outlives a call.
//
// # What it needs
//
// early demux switched off (conntrack.DisableEarlyDemux) on Linux before 6.6, since TCP frontends share a port, and
// Linux with iptables 1.8 or later of either backend, the tables mangle, nat
// and filter, xt_conntrack, xt_comment, xt_addrtype, xt_set or xt_multiport,
// REDIRECT or DNAT, REJECT, and nf_conntrack_netlink; CAP_NET_ADMIN and CAP_NET_RAW in the network
// namespace. The legacy backend also writes a lock file, /run/xtables.lock
// unless the environment variable XTABLES_LOCKFILE names another. Elsewhere
// every call returns [errors.ErrUnsupported].
package redirect
