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
// What becomes of a flow conntrack says: it is in flight at its endpoint until both ends have closed, it was reset, or
// its entry has gone, so that least connections and limits are those of user space. Where neither matters
// (lb.Policies.CountsInFlight) a flow of UDP is not in flight, and a connection of TCP is until it is answered; what is
// open there conntrack's table says. Its events are listened to while a Service needs them ([Server.Expect],
// [Server.Changed]), or an endpoint has failed; else connections are looked at after 50 ms. Of many such connections to
// an address 25 in a quarter of a second are followed, and one every 50 ms to each endpoint; the others go once their
// endpoint is chosen. When an endpoint has failed all are followed for ten seconds, and those that were not are found
// in the table: so that none waits for more than a client of one that was. A connection of TCP beyond a limit is reset;
// a client of SCTP hears by ICMP that its protocol is unreachable, which ends an association that is being set up. An
// endpoint that resets the first packet of a connection, or has not answered it in 250 ms, has failed. In the second
// case the entry is deleted, if there is another endpoint, so that the client's next SYN is asked about again; in the
// first it is refused, unless its Service has rules drop that (lb.Policies.RetryRefused), so that it sends again. Whose
// reset it was the kernel says only if it counts packets (net.netfilter.nf_conntrack_acct): else each client is
// believed once in an interval (see package lb), and so is one that meets silence, unless the Service has answered it a
// moment ago: a policy of the network may be silent to it everywhere. One Service, or one client, has a share only of
// the flows that are known and the packets that are held (package shares). Where the kernel has no events
// ([Server.Cannot]) flows are not in flight: least connections takes turns.
//
// A packet in the midst of a connection that conntrack does not know goes where the connection did, or a new one would,
// and says nothing of its endpoint: else a client could have endpoints ejected that reset such packets.
//
// Where a Service requests it (lb.Policies.Hold) and has no endpoint, the packet stays in a queue of its own
// until it has one. What a client sends meanwhile is dropped, and so is the packet at Close: the
// client sends again, to the next process or to the rules, which refuse it. What no endpoint has room for stays there,
// too, in the queue of its Service (lb.Waiter), until it is its turn.
//
// Clients with affinity are not known to the kernel's rules until they are passed on at a stop
// (Engine.Remember of kernelmodes/nftables); those of a process that is killed are chosen for anew.
//
// Goroutines: one for each queue and one for events, of the packages below; one looks at flows
// that were not answered, one reads conntrack's table, and one lets held packets go, when
// Wake says so or their time is over. Close joins
// all.
package queue
