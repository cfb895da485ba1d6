// Package packet forwards SCTP on a kernel that has none: raw sockets see all SCTP packets for
// the host, and those of our frontends and associations are sent on with other addresses, ports
// and CRC32c. Associations stay the endpoints' own, so that everything else passes untouched:
// streams, order, fragments of messages, congestion control, heartbeats, extensions,
// the traffic class with its congestion marks.
//
// What does not pass is what would lead past us: addresses in INIT and INIT ACK, host names,
// changes of addresses (ASCONF), which are refused, and the agreement to do without checksums
// (RFC 9653). So associations have one path on each side.
//
// An association is followed by its verification tags, from INIT to SHUTDOWN COMPLETE
// or ABORT. A packet whose tag, checksum, lengths or chunks are wrong is dropped and
// counted, and changes nothing. A packet of no association is answered at frontends as
// RFC 9260 section 8.4 requires, and not elsewhere: another program of the host may have
// SCTP of its own. Such a program must not abort associations that it does not know, though,
// since it sees all packets, too. A kernel with SCTP would do that, so that the engine
// refuses to run beside it.
//
// Every raw socket gets a copy of every packet, and a filter keeps those of its loop:
// the sum of the two ports selects it, and the port towards a backend is chosen so
// that both sides of an association have the same. Packets that are too long for the path to a
// backend are fragmented by the kernel, which heeds ICMP; fragments that arrive are reassembled.
//
// # The way of a packet
//
// rawSocket.HandleEvent, mmsg.Reader.Read, parse, rawSocket.handle, wire.Parse, assoc.fromClient or
// fromBackend, rawSocket.forward, rawSocket.add, rawSocket.flush, mmsg.Send. An INIT of no association:
// rawSocket.handleUnknown, accept, assoc.dialNext, Balancer.Pick, assoc.connect, shard.send.
package packet
