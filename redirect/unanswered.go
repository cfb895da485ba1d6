package redirect

import "net/netip"

// DeleteUnanswered deletes the conntrack entries of connections, of a family, to frontends
// of TCP and SCTP that nobody had when they were begun, whoever forwards them now, so that
// the next packet by which the client tries finds the rules. Entries that somebody has
// answered, or that are translated, are left alone. It returns their number. A frontend
// with an unspecified address is a port of every address of this node but loopback. However
// many frontends a protocol has, it takes the kernel one walk through its whole table, and
// none if there are no frontends. It works in the network namespace of the calling thread.
func DeleteUnanswered(ipv6 bool, tcp, sctp []netip.AddrPort) (uint64, error) {
	return deleteUnanswered(ipv6, tcp, sctp)
}
