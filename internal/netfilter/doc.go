// Package netfilter writes rules and sets for parts of this program, each of which has a
// [Ruleset]: chains, the jumps to them from the kernel's chains, and sets with members. It
// knows no rule, chain or set by name: a [Layout] says which are whose.
//
// A ruleset is edited, which touches no kernel, and then written:
//
//	edit: SetChain, AddRule, AddToBucket, AddJump, Member
//	Write   learn what the kernel holds, once > jumps > sets grow > rules > sets shrink
//	Verify  what the kernel holds is what was written
//	Remove  every trace, in both backends of iptables
//
// Write costs what was edited. It runs iptables-restore once at the most, and none if only
// members changed; chains that differ little are edited rule by rule. Sets that packets
// read one after the other change with an RCU grace period in between ([SetGroup]). What
// was written is read back, by netlink where iptables has nf_tables below it, and by
// iptables-save where it has not. After an error, or when Verify has found a difference,
// the next Write reads everything and writes everything.
//
// A [Lease] makes rules end by themselves when no process renews it.
//
// # A second backend
//
// What a backend by nftables would replace is in files of its own:
//
//	iptables, command, lock, save   running the programs; texts of rules are iptables'
//	write (edits), verify (look)    transactions, and how a chain is read back
//	jump                            nftables has base chains with priorities
//	sets, grace                     ipset; with nftables rules and elements are one transaction
//	lease                           nftables has sets with timeouts as well
//
// What it would share is the model in ruleset_linux.go: edits of chains by name, buckets, members
// counted by [Refs], and what is unknown, learned or known. It has no interface until there
// are two of them. Texts of rules belong to a backend; names of chains and members of sets
// do not.
//
// Packages below: conntrack changes the kernel's table of connections, nfnl speaks with the
// subsystems of nfnetlink. All of it is for Linux, needs CAP_NET_ADMIN and works in the
// network namespace of the calling thread.
package netfilter
