// Package netfilter is what everything that writes rules has in common: running
// iptables with a bounded wait for its lock and an error that says what to do,
// reading back what the kernel really holds, removing chains with all that leads to
// them, and deleting entries of conntrack.
//
// It knows no chain, set or service by name, but how the names of our chains begin
// and which of them marks a table that did not exist before. It keeps no state. All of
// it works in the network namespace of the calling thread, needs CAP_NET_ADMIN, and is
// for Linux alone.
package netfilter
