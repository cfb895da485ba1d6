// Package nft keeps tables of nf_tables, by netlink and without any program. A [Table] has sets,
// maps, chains and rules of its own, so that what others flush never concerns it.
//
// A table is edited, which touches no kernel, and then written:
//
//	edit: AddSet, SetChain, Add
//	Write   one transaction of the kernel: all of it or nothing
//	Verify  what the kernel holds is what was written
//	Remove  every trace
//
// Write costs what was edited, and what Verify has found to be otherwise in rules and elements.
// The first one, and each one after an error or after Verify has found more than that, replaces
// the whole table, in one transaction as well. What rules have added to a set ([Set.Dynamic]) stays,
// and so do base chains: the kernel drops what is in queues (nfnetlink_queue) when a base chain goes.
//
// A packet reads the rules of one base chain as they were before a transaction, or as they are after
// it. But it finds nothing in a map that a transaction replaces, if it has begun to read the old
// rules. So a later base chain has to look again before it refuses the packet.
//
// Rules are built by [Rule] from the library's expressions (github.com/google/nftables/expr);
// they are not sent by that library, which awaits an answer to each message and copies each
// element some ten times.
//
// A table with a [Table.Lifetime] ends by itself: its base chains, or those with their rules
// ([Hook.New]), return at once when the element of the set "alive" has expired, which Write and
// [Renew] put there. [Monitor] notices that other programs have changed anything.
//
// It is for Linux 5.13 and later with CAP_NET_ADMIN, and works in the network namespace of the
// calling thread.
package nft
