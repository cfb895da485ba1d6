// Package queue has the Balancer choose the endpoint of each new flow, and the kernel forward its
// packets: rules of kernelmodes/nftables with Ask send the first packet of a flow to a [Server],
// which says by a mark where it goes, and conntrack does the rest. So rotation, affinity and
// ejections are those of user space, open flows cost 1 to 2 % more than DNAT (bench/results/inside.md),
// an endpoint sees its client's address, and no flow takes a descriptor.
//
//	rules: queue -> Server: Balancer.Pick -> mark -> rules: map of marks, DNAT
//
// Without a process, and where one has no answer or is too slow, the kernel chooses, as in mode
// nftables. So the end of the process stops no flow, and Close loses no packet. Only flows whose
// first packet is in a queue when the process is killed have to send it again.
//
// Conntrack's events say what happens to a flow (flow_linux.go has the states). It is in flight at its endpoint until
// both ends have closed, it is reset, or its entry goes. Without a policy that counts (lb.Policies.CountsInFlight) a
// UDP flow is not in flight, and a TCP connection is until it is answered; conntrack's table has what is open there.
//
// An endpoint fails that resets the first packet of a connection, or does not answer it within 250 ms. In the second
// case the entry is deleted if there is another endpoint, so that the client's next SYN is asked about. Whose reset it
// was, the kernel says only if it counts packets (net.netfilter.nf_conntrack_acct). Without counts each client is
// believed once in an interval (package lb), and so is a client that meets silence, unless the Service has answered it
// within 10 s: a NetworkPolicy may drop its packets everywhere.
//
// One Service, or one client, has a share of the flows that are known (package shares). Where the kernel has no events
// ([Server.Cannot]) flows are not in flight, and least connections takes turns.
//
// There are neither limits nor queues of clients: they need user space.
//
// A packet of a connection that conntrack does not know goes where the connection did, if the connection is followed,
// and else where a new one would. It says nothing of its endpoint: else a client could have endpoints ejected.
//
// Clients with affinity are not known to the kernel's rules until they are passed on at a stop
// (Engine.Remember of kernelmodes/nftables); those of a process that is killed are chosen for anew.
//
// Goroutines: one for each queue and one for events, of the packages below; one looks at flows that were not answered,
// and one reads conntrack's table. Close joins all.
package queue
