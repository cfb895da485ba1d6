// Package conntrack changes the kernel's table of connections: its size and timeouts, and
// entries that would keep packets on a path which has changed. Netfilter asks the rules of
// the nat table about the first packet of a flow only, so that an entry outlives them. And
// it says what becomes of entries.
//
// It works in the network namespace of the calling thread and needs CAP_NET_ADMIN. It keeps
// no state. On other systems than Linux every call returns errors.ErrUnsupported.
//
// Goroutines: one for each Listen, which Close joins.
package conntrack
