// Package redirect makes packets for a Service's frontends reach the sockets of
// a proxy on this node, tells the proxy which frontend a client asked for, and
// removes every trace of itself.
//
// [IPTables] steers by netfilter's nat table, in one address family; a
// dual-stack node uses two of them with the same [Plan].
//
// # What it writes
//
// Chains whose names begin with "SLUICE-", five jumps to them, and sets whose
// names begin with "SLUICE4-" or "SLUICE6-":
//
//	nat    PREROUTING, OUTPUT -> SLUICE-STEER -> SLUICE-TCP, SLUICE-UDP, SLUICE-SCTP
//	filter INPUT              -> SLUICE-INPUT -> SLUICE-REFUSE
//	filter FORWARD, OUTPUT    -> SLUICE-REFUSE
//
// PREROUTING is where packets of other hosts and of pods come in, OUTPUT where
// those of the node itself start. All jumps are prepended.
//
// TCP frontends are members of a set, so the number of rules does not depend on
// the number of services and a change of one service is one netlink message and
// no process. All of them go to one port, since a connection remembers what it
// was asked for ([OriginalDst]). A datagram does not, so that each UDP frontend
// has a port of its own and a rule of its own.
//
// SLUICE-INPUT accepts what was steered, so that a node whose INPUT policy is
// DROP still serves (the kernel modes of kube-proxy do not pass INPUT at all), and
// rejects a connection straight to a proxy port. SLUICE-REFUSE rejects at once
// what is asked of a service that has no endpoints. Both see only the first
// packet of a flow.
//
// A kernel or an iptables without the set match gets one rule per frontend
// instead, with the same effect.
//
// # Guarantees
//
// A change runs one iptables-restore --noflush at the most, and none if only
// members of sets changed. What stays in the plan stays steered throughout:
// chains are replaced in one transaction, members come before the rules that need
// them and go after. A failure leaves what is there, and the next Sync writes
// the whole again. Nothing is removed when the process ends, so that a restart
// loses nothing; [Cleanup] removes it all.
//
// The package starts no goroutine that outlives a call.
//
// # What it needs
//
// Linux with iptables 1.8 or later of either backend, xt_conntrack, xt_comment,
// xt_addrtype, xt_multiport (without sets), REDIRECT or DNAT, and REJECT;
// CAP_NET_ADMIN and CAP_NET_RAW in the network namespace. The legacy backend also
// writes a lock file, /run/xtables.lock unless the environment variable
// XTABLES_LOCKFILE names another. Elsewhere every call returns
// [errors.ErrUnsupported].
package redirect
