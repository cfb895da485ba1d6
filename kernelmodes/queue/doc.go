// Package queue lets the Balancer choose the endpoint of each new flow, and the kernel forward its packets: rules of
// kernelmodes/nftables with Ask send the first packet of a flow to a [Server], which says by a mark where it goes, and
// conntrack does the rest. So rotation, affinity and ejections are those of user space, open flows cost 1 to 2 % more
// than DNAT (bench/results/inside.md), an endpoint sees its client's address, and no flow takes a descriptor.
//
//	rules: queue -> Server: track.Tracker: Balancer.Pick -> mark -> rules: map of marks, DNAT
//
// What happens to a flow after that, package internal/flows/track follows.
//
// Without a process, and where one has no answer or is too slow, the kernel chooses, as in mode nftables. So the end of
// the process stops no flow, and Close loses no packet. Only flows whose first packet is in a queue when the process is
// killed have to send it again.
//
// There are neither limits nor queues of clients: they need user space.
//
// A packet of a connection that conntrack does not know goes where the connection did, if the connection is followed,
// and else where a new one would. It says nothing of its endpoint: else a client could have endpoints ejected.
//
// Clients with affinity are not known to the kernel's rules until they are passed on at a stop
// (Engine.Remember of kernelmodes/nftables); those of a process that is killed are chosen for anew.
//
// Goroutines: one for each queue, and those of package track. Close joins all.
package queue
