// Package queue has the Balancer choose the endpoint of each new flow, and the kernel forward its
// packets: rules of kernelmodes/nftables with Ask send the first packet of a flow to a [Server],
// which says by a mark where it goes, and conntrack does the rest. So rotation, affinity and
// ejections are those of user space, open flows cost what DNAT costs, an endpoint sees its
// client's address, and no flow takes a descriptor.
//
//	rules: queue -> Server: Balancer.Pick -> mark -> rules: map of marks, DNAT
//
// Without a process, and where one has no answer or is too slow, the kernel chooses, as in mode
// nftables. So the end of the process stops no flow, and Close loses no packet. Only flows whose
// first packet is in a queue when the process is killed have to send it again.
//
// A flow is not in flight at its endpoint yet: the choice is given back at once, so that least
// connections takes turns. Clients with affinity are not known to the kernel's rules, which
// choose for them anew once the process has ended.
package queue
