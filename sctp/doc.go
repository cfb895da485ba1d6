// Package sctp forwards SCTP associations (RFC 9260) between clients and the backends
// that an [lb.Balancer] chooses for them. There are two engines behind one [Server].
//
// # Sockets
//
// Where the kernel has SCTP, each association of a client is one with us, and there
// is another with its backend, by one-to-one sockets in the event loops (RFC 6458).
// Messages keep their boundaries, stream, payload protocol id, and whether they are
// ordered; the backend is asked for the streams that the client wants. Each side has
// its own paths, retransmissions and heartbeats. A long message, which the kernel
// hands out in parts and takes only whole, is put together here.
//
// A side that shuts down has the other shut down when all has been passed on, an
// ABORT becomes an ABORT. SCTP knows no half-open associations: what the other side
// has under way by then is lost.
//
// Every listening socket is bound to one address, and so is every socket towards a
// backend: an unbound one would tell its peer all addresses of the host, which are
// not where traffic is steered.
//
// # Packets
//
// Where it has none, raw sockets see all SCTP packets for the host, and those of
// our frontends and associations are sent on with other addresses, ports and CRC32c.
// Associations stay the endpoints' own, so that everything else passes untouched:
// streams, order, fragments of messages, congestion control, heartbeats, extensions,
// the traffic class with its congestion marks. What does not pass is what would lead
// past us: addresses in INIT and INIT ACK, host names, and changes of addresses
// (ASCONF), which are refused; and the agreement to do without checksums (RFC 9653).
// So associations have one path on each side.
//
// An association is followed by its verification tags, from INIT to SHUTDOWN COMPLETE
// or ABORT. A packet whose tag, checksum, lengths or chunks are wrong is dropped and
// counted, and changes nothing. A packet of no association is answered at frontends as
// RFC 9260 section 8.4 wants it, and nowhere else: another program of the host may have
// SCTP of its own. Such a program must not abort what it does not know, though, for
// it sees all packets, too.
//
// While a raw socket is open the kernel does not tell peers that the protocol is
// unreachable (ip_protocol_deliver_rcu), so no rule has to keep that back. A kernel
// with SCTP would abort every association that it does not know itself, which is why
// the engine refuses to run beside it.
//
// Packets that the way to a backend is too narrow for are fragmented by the kernel,
// which heeds ICMP and remembers; fragments that arrive are put together by it.
//
// Every raw socket gets a copy of every packet, and a filter keeps those of its loop:
// the sum of the two ports says which, and the port towards a backend is chosen so
// that both sides of an association have the same.
//
// # Dialling
//
// A backend that refuses (ABORT, or ICMP before it has answered) is left at once,
// one that is silent after 250 ms, and then after 500 ms, 1 s and 2 s; affinity moves
// along. The packet engine sends the client's INIT again itself. An INIT that the client
// sends again goes to the same backend, also when it starts an association again that
// it has forgotten; unless that backend has not answered for a second.
//
// # How traffic gets here
//
// Both engines take one port for each frontend (Server.Listen), to which the caller
// steers what asks for the frontend; or the frontend is an address of the host.
// Steering by netfilter's nat table needs conntrack to know SCTP (CONFIG_NF_CT_PROTO_SCTP),
// and lasts as long as conntrack does: 210 s without a packet, by default, which
// heartbeats every 30 s do not let happen.
//
// # Handing over
//
// While the loops are halted a Server can say all there is to know of its associations
// (Server.Holding, Server.Freeze), and another one goes on with them (Server.Adopt), in
// another process too: by the raw sockets, in which packets wait meanwhile, or by the
// sockets of each association. From then on an association ends by an ABORT that is
// sent, and not by the close of a socket of which others may have copies.
//
// # Goroutines
//
// None: everything runs on the loops.
package sctp
