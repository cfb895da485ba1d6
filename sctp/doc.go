// Package sctp forwards SCTP associations (RFC 9260) between clients and the backends that a Balancer chooses for
// them. There are two engines behind one [Server]:
//
//   - where the kernel has SCTP, package socket relays messages between one association with the client and one with
//     its backend;
//   - where it has none, package packet sends packets on that raw sockets see, and the association is the endpoints'
//     own.
//
// The next backend is tried at once after one that refuses (ABORT, or ICMP before it has answered), and after 250 ms,
// 500 ms, 1 s and 2 s if one is silent; affinity moves along.
//
// Both engines take one port for each frontend (Server.Listen), to which the caller steers what is sent to the
// frontend; or the frontend is an address of the host. Steering by netfilter's nat table needs conntrack for SCTP
// (CONFIG_NF_CT_PROTO_SCTP), and lasts as long as the conntrack entry: 210 s without a packet by default. Heartbeats,
// every 30 s, keep it.
//
// While the loops are halted a Server returns the whole state of its associations (Server.Holding, Server.Freeze), and
// another one continues them (Server.Adopt), in another process too: by the raw sockets, in which packets wait
// meanwhile, or by the sockets of each association. From then on an association ends by an explicit ABORT, since
// another process may have copies of the sockets.
//
// The package starts no goroutines: everything runs on the loops.
package sctp
