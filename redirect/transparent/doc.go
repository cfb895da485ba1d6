// Package transparent brings the answers of endpoints on this node to sockets that connect to them from the addresses
// of clients (IP_TRANSPARENT, ip(7)). Such an answer goes to the client's address, and would be forwarded.
//
// For each address family there are, as long as [Rules.Sync] requests it,
//
//	a table sluice-transparent of nf_tables   marks what belongs to a transparent socket of this node, at prerouting
//	a rule of the routing policy              has what is marked looked up in a table of its own
//	a route there                             delivers it to this node
//
// The socket is found by the packet's addresses and ports, and conntrack decides nothing. A client that connects to the
// endpoint directly is not concerned, unless it does so from the port that the kernel has chosen for us: then its own
// connection is reset. A process that takes over finds all of it and keeps it; [Cleanup] removes it. It is for Linux
// 5.13 and later with nf_tables and its socket expression, and CAP_NET_ADMIN, and works in the network namespace of the
// calling thread.
package transparent
