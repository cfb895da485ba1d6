// Package track follows the flows of data path queue, for which user space chooses endpoints and which the kernel
// forwards. A [Tracker] chooses by the first packet, and then learns from conntrack what happens to the flow:
//
//	first packet ── Choose ──> Balancer.Pick ──> table of flows <── handle: events (flows.Watch)
//	                                                   ^   ^─────── probeLoop: no answer in time
//	                                                   └─────────── readLoop: the whole table, after a loss
//
// flow_linux.go has the states of a flow, its transitions and what is always true. A flow is in flight at its endpoint
// until its connection ends (both ends have closed, or one has reset it), or its entry does. A TCP connection is
// followed until it is answered, and longer if a policy counts what is in flight (lb.Policies.CountsInFlight). A UDP
// flow is followed if such a policy, logs or udp-responses need it (flow.isFollowed).
//
// An endpoint fails if it resets the first packet of a connection, or does not answer it in time (flow.timeout). In the
// second case the entry is deleted if there is another endpoint, so that the kernel asks about the client's next SYN.
// The kernel says whose reset it was only if it counts packets (net.netfilter.nf_conntrack_acct). Without counts each
// client is believed once in an interval (package lb). So is a client that meets silence, unless the Service has
// answered it within 10 s: a NetworkPolicy may drop its packets everywhere.
//
// One Service, or one client, has a share of the flows that are known (package shares). Where the kernel has no events
// ([Tracker.Cannot]) no flow counts as in flight, and least connections takes turns.
//
// testdata has scripts: what conntrack says, and the flows after that.
//
// Goroutines: one probes flows that were not answered, and one reads conntrack's table. Close joins both. Events come
// on that of the Watch.
package track
