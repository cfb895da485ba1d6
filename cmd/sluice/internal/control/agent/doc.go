// Package agent applies what is requested, a set of Services after the other, to the
// data path: table, sockets, steering and the kernel's forwarding.
//
// lb.Table.Next says which Services differ (lb.Delta). For those, and for no others, a pure
// function (environment.piece) says what each comes to; what differs from the piece that is
// applied is the Plan. It is executed so that no packet is steered at a socket which is not
// there, and no socket asks for a Service that the table does not have:
//
//  1. table: the new Services, and the addresses that are about to go
//  2. sockets: those of new UDP and SCTP frontends and node ports are opened
//  3. engines: they get the Services that are new on their paths, or changed
//  4. steering, the slow part: from the old frontends to the new, once
//  5. engines: they lose the Services that are on other paths now
//  6. conntrack: entries that would keep packets off their new path are deleted
//  7. sockets: those of old frontends and node ports are closed
//  8. table: the new Services alone
//
// A Service that moves from one path to another is on both in between, and a new flow takes
// the one that comes first: steering, queue, nftables, iptables, ipvs. Where the host holds the service
// addresses there is no steering: it gets the new ones before all this, and loses the old
// ones after it. The table has the Services of all paths, so that a flow in user space goes
// on when its Service has moved, and node ports are held by sockets on all paths.
//
// Endpoints that an operator drains (Agent.Drain) are marked in what is desired before all this, so that every path has
// them as those with a weight of 0.
//
// After an error the data path serves both what was and what is to be, as far as it got,
// and the next attempt computes and writes everything anew. Rules that another program
// has changed are repaired the same way.
//
// At the end [Agent.Offload] moves what user space has to path nftables, or else iptables, as any move,
// and [Agent.Withdraw] closes the sockets; the next process finds what it left by [Engine] Leftover and
// moves it back.
//
// Goroutines: none of its own; Agent.Run is one goroutine's whole work, and everything
// but Submit, Drain, Status and NodeAddrs belongs to it, or to that of Offload afterwards.
package agent
