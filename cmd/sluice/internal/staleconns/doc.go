// Package staleconns deletes conntrack entries of TCP and SCTP clients that asked for a
// Service before it existed.
//
// Netfilter looks at rules only for the first packet of a connection, and one that is sent
// again is none: conntrack has an entry that leads nowhere, and keeps it for as long as the
// client goes on asking. Without the entry the next packet finds the Service. No change
// waits for this.
//
// Goroutines: those in which Run is called, two, one for each address family.
package staleconns
