// Package agent applies what is requested, a set of Services after the other, to the
// data path: table, sockets, steering and the kernel's forwarding.
//
// A change is computed once. lb.Table.Next says which Services differ (lb.Delta). For
// those, and for no others, a pure function (environment.piece) says what each comes to:
// its data path, the sockets it needs, the entries it is steered by, and what an engine
// is to forward. What differs from the piece that is applied is the Plan. Executing a
// plan never steers a packet at a socket which is not there, and no socket ever asks for
// a Service that the table does not have:
//
//  1. table: the new Services, and the addresses that are about to go
//  2. sockets: those of new UDP and SCTP frontends and node ports are opened
//  3. engines: they get the Services that are new on their paths, or changed
//  4. steering: from the old frontends to the new
//  5. engines: they lose the Services that are on other paths now
//  6. sockets: those of old frontends and node ports are closed
//  7. table: the new Services alone
//
// Adding goes table, sockets, steering; removing goes steering, sockets, table; steering,
// the slow part, changes only once. A Service that moves from one path to another is on
// both in between, and a new flow takes the one that comes first: steering, iptables,
// ipvs. Where the host holds the service addresses there is no steering: it gets the new
// addresses before all this, and loses the old ones after it.
//
// After an error the data path serves both what was and what is to be, as far as it got,
// and the next attempt computes and writes everything anew. Rules that another program
// has changed are repaired the same way.
//
// The table has the Services of all paths, so that a flow in user space goes on when its
// Service has moved, and node ports are held by sockets on all paths.
//
// Goroutines: none of its own; Agent.Run is one goroutine's whole work, and everything
// but Submit, Status and NodeAddrs belongs to it. Submitted sets replace each other, so
// that at most one waits.
package agent
