// Package udp forwards UDP datagrams: it receives them from clients, asks a Balancer for a backend once a flow and
// moves whole datagrams both ways until the flow has been idle for a while.
//
// A flow is one client address and port, asking one address of ours, at one frontend. It has a connected socket of its
// own towards its backend; if the Service requests it, a PROXY header, not counted, goes before each datagram there.
//
// By default a client's socket stays with its backend as with conntrack: for 30 s after its last datagram, and for
// 120 s once there was more than one exchange. A flow is a oneShot once it was answered, until its client has asked on
// within 2 s twice. If a quarter of a shard's places are oneShots, a new flow parks the one that is idle for longest,
// at least 250 ms: the balancer remembers its backend, and the new flow gets its socket, with another port. Flows that
// make room are remembered, too. For 10 s after that, or while there are too many oneShots, oneShots are parked 2 s
// after their last datagram. A parked client's next datagram goes to the same backend, from another port. What the
// backend sends by itself meanwhile is lost.
//
// A Server has shards, each with frontends and flows of its own, and a transport that moves their datagrams: an event
// loop, or goroutines under one lock.
//
// A frontend has one socket for each loop, and the kernel assigns a client to one of them by a hash (SO_REUSEPORT,
// socket(7)), so that a flow stays on its loop. Replies leave from the address that was asked (IP_PKTINFO, ip(7)).
//
// # What is promised
//
// Datagrams of every size pass whole: 65,507 bytes over IPv4, 65,527 over IPv6. None is duplicated, split or merged,
// and the order within a flow is kept. What is dropped is counted in Stats by reason. None costs an allocation.
//
// A flow leaves a backend with its client's next datagram if that is neither ready nor serving, is ejected, fails its
// checks, or owes an answer for 1.5 s where one is expected; late answers pass for a second. It leaves one that
// refuses, up to four times; a datagram that ICMP quotes whole (some 500 bytes of IPv4, 1,200 of IPv6) is sent again.
//
// Datagrams that arrive as a batch (UDP_GRO, udp(7), Linux 5.0) leave as a batch (UDP_SEGMENT), and so do datagrams in
// a row of equal length, unless the kernel, the path or Server.DisableGSO forbids it, or the backend has not answered
// yet: only single datagrams come back as they were when refused.
//
// A datagram leaves with a hop less than it had when it arrived (TTL, hop limit), as from a router, and one that has
// no more is dropped: a loop, also one by way of another node, ends after as many datagrams as its first one had hops.
// Without Loops hops are not known. Answers have as many as any packet of this host.
//
// At a limit (Server.MaxFlows, half of Server.Descriptors, or of the kernel) and where a Service or a client has its
// share, a flow makes room for a new one: of those that have more than the one that asks, and first the least recently
// active that no datagram has followed an answer on. So flows that are in use go on beside any number of spoofed
// sources. Each flow takes an ephemeral port of the host; when there is none, none is looked for in the next 100 ms,
// since each look costs the kernel a walk over all of them.
//
// Freeze and Adopt move all flows to another process, on halted loops. Without Loops, as on Windows, one goroutine
// serves each frontend and one each flow, datagram by datagram, answering from the address that the socket is bound
// to; no flow can be moved.
package udp
