// Package udp forwards UDP datagrams: it receives them from clients, asks an
// lb.Balancer for a backend once a flow and moves whole datagrams both ways until
// the flow has been idle for a while.
//
// A flow is one client address and port, asking one address of ours, at one
// frontend. It has a connected socket of its own towards its backend, so that the
// kernel tells apart the replies, and the refusals, of different flows.
//
// # Life of a datagram
//
//  1. It arrives at one of the frontend's sockets, of which each loop has one. The
//     kernel chooses by a hash of addresses and ports (SO_REUSEPORT, socket(7)), so
//     a flow always meets the same loop and nothing of it is shared.
//  2. The loop takes up to 32 messages at a time, with the address that the client asked
//     (IP_PKTINFO, ip(7)), and sorts them by flow. Each flow's run leaves in one
//     system call; the order within a flow is kept. A message is a datagram or a train.
//  3. A flow that is new, or whose backend has left the table, picks a backend.
//  4. Replies go back through the frontend's socket, from the address that was
//     asked, even if the host has several.
//  5. A flow without a datagram either way for Server.IdleTimeout is closed. The
//     next datagram of that client begins a new one, with a new pick. What waits unread
//     in a socket counts, so that a loop that was late ends no flow that is in use.
//
// # What is promised
//
// Datagrams of every size that UDP knows pass whole: 65,507 bytes over IPv4, 65,527
// over IPv6. None is duplicated, split or merged. As with any UDP hop one may be
// lost where a queue is full; whatever the package drops itself is counted in
// Stats by reason.
//
// A flow leaves a backend that is neither ready nor serving any more with the next
// datagram of its client. Answers to what was asked before are still passed on
// until the flow is idle, for at most a second.
//
// A backend that refuses (ICMP port or host unreachable, or an error of the send
// itself) is reported to the balancer and the flow goes on to another, at most four
// in a row without an answer. The ICMP message quotes what was refused, as much as
// fits 576 bytes for IPv4 (RFC 1812 section 4.3.2.3) or 1,280 for IPv6 (RFC 4443
// section 3.1); a datagram that is quoted whole is sent again to the next backend,
// so that a client with a short question does not notice.
//
// # Trains
//
// Datagrams that one sender has given the kernel by one send, as QUIC stacks do, or that a
// network card has brought together, reach a socket as one message where the kernel can
// (UDP_GRO, udp(7), Linux 5.0): up to 64 KiB, all but the last equally long. Such a train
// leaves as it came, by one send (UDP_SEGMENT, Linux 4.18), and so do datagrams in a row
// that are equally long; a shorter one ends a train, and two trains are joined only if they
// agree in length and go as one whole. A train of more than 64 datagrams, which newer
// kernels allow, leaves as two or more. Where the kernel or the way refuses trains, because
// a datagram is longer than the way's MTU or a device or IPsec would have to see each, the
// flow's datagrams go one by one in that direction from then on; so do those for a backend
// that has not answered yet, for at most a second, so that those that it refuses come back
// as they were. Every counter counts datagrams.
//
// # Limits
//
// Server.MaxFlows bounds the flows of a frontend and Server.Descriptors the sockets
// of all. At a bound, and when the kernel is short of descriptors, ports or memory,
// the least recently active flow makes room: that of the frontend at the former,
// that of the loop at the latter. Each flow takes an ephemeral port
// (net.ipv4.ip_local_port_range, 28,232 by default, for all UDP flows of the host).
//
// A loop has 2 MiB of receive buffers for all its sockets, of which the pages that
// were ever filled are resident: 32 of 64 KiB, so that neither a datagram nor a train is
// ever cut off. A flow has none. A datagram costs no allocation. An event of one socket
// takes 128 datagrams, or up to 32 trains, before others have their turn.
//
// # Handing over
//
// On Linux another process can have everything: Freeze says all there is to know of each
// flow while the loops are halted, and Adopt of a Server there sets it in motion. What
// was received meanwhile waits in the sockets, of which a frontend keeps its number: the
// kernel shares clients out among them by that.
//
// Trains may wait there, too, and the kernel tells their datagrams apart only for who asks.
// A program from before this package took trains would send each on as one long datagram:
// call Server.RefuseTrains before such a one gets the sockets. Sockets that come from such
// a program take trains from Adopt on.
//
// # Without loops
//
// A Server without Loops, as on systems other than Linux, does all of this by
// goroutines, one datagram at a time, with these differences. An answer leaves from the
// address that its socket is bound to: listen on each address of a host rather than on
// all. What is sent again after a refusal is the last datagram, if it had 1,232 bytes or
// less; answers that wait in the flow's socket at that moment are lost. A frontend and a
// flow have 64 KiB of buffer each, of which the pages that were ever filled are resident.
// The least recently active flow of all makes room for descriptors. Nothing can be handed over.
//
// # Goroutines
//
// The package starts none for a Server with Loops, on which all work runs. Without, there is one
// for each frontend and one for each flow, which Unlisten, Close and Shutdown join.
package udp
