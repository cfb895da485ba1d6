// Package addresses puts service addresses on an interface of this host, on Linux and on
// Windows, for a proxy to listen on: packets for them arrive without a packet filter. It
// is what the mode winuserspace uses in place of redirected packets.
//
// A [Set] holds the addresses of one family and marks them as ours, so that the next
// process knows what a killed one has left; [Cleanup] removes them. On Linux with nf_tables a table refuses clients
// that ask there for a program which listens on all addresses ([Set.Guard]).
package addresses
