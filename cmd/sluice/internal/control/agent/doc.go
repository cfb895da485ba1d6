// Package agent applies what is requested, a set of Services after the other, to the data path: table, sockets,
// steering and the kernel's forwarding.
//
// lb.Table.Next says which Services differ (lb.Delta). Only their rows are looked at (row). A pure function
// (environment.piece) says what a row comes to, and what differs from the piece that is applied is the Plan. Its steps
// are in this order, so that no packet is steered at a socket that is not there, and no socket asks for a Service that
// the table does not have:
//
//  1. table: the new Services, and the addresses that are about to go
//  2. engines: they get the Services that are new on their paths, or changed
//  3. sockets: those of new UDP and SCTP frontends and node ports are opened
//  4. steering: from the old frontends to the new
//  5. engines: they lose the Services that are on other paths now
//  6. conntrack: entries that would keep packets off their new path are deleted
//  7. sockets: those of old frontends and node ports are closed
//  8. table: the new Services alone
//
// A change waits for an engine for 100 ms (patience). An engine that takes longer writes beside the table: its rows are
// postponed, or go on as the engine has them, and Run takes another turn when it has ended.
//
// A Service that moves from one path to another is on both in between. A new flow takes the one that comes first:
// steering, queue, nftables, iptables, ipvs. Where the host holds the service addresses there is no steering: it gets
// the new ones before all this, and loses the old ones after it. The table has the Services of all paths, so that a
// flow in user space goes on when its Service has moved. Node ports are held by sockets on all paths.
//
// Endpoints that an operator drains (Agent.Drain) are marked in what is desired before all this, so that every path has
// them as those with a weight of 0.
//
// After an error of steering the data path serves both what was and what is to be, as far as it got, and the next
// attempt computes and writes everything anew. So are rules repaired that another program has changed. The Services of
// an engine that fails go to user space. Services without a socket are tried again.
//
// At the end [Agent.Offload] moves what user space has to path nftables, or else iptables, as any move, and
// [Agent.Withdraw] closes the sockets. The next process finds what it left by [Engine] Leftover, and moves it back.
//
// Agent.Run is one goroutine's whole work. What does not say that it may be called from anywhere belongs to it, or to
// that of Offload afterwards. Each Sync of an engine is a goroutine. The end of Run, Pause and Apply wait for it.
package agent
