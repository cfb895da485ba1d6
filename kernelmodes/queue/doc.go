// Package queue has the Balancer choose the endpoint of each new flow, and the kernel forward its
// packets: rules of kernelmodes/nftables with Ask send the first packet of a flow to a [Server],
// which says by a mark where it goes, and conntrack does the rest. So rotation, affinity and
// ejections are those of user space, open flows cost what DNAT costs, an endpoint sees its
// client's address, and no flow takes a descriptor.
//
//	rules: queue -> Server: Balancer.Pick -> mark -> rules: map of marks, DNAT
//
// Without a process, and where one has no answer or is too slow, the kernel chooses, as in mode
// nftables. So the end of the process, by whatever signal, stops no flow.
//
// A flow is not in flight at its endpoint yet: the choice is given back at once, so that least
// connections takes turns.
package queue
