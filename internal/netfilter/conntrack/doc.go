// Package conntrack talks to the kernel about its table of connections: it lists and finds entries, deletes those that
// would keep packets on a path that has changed, and subscribes to events. Netfilter asks the rules of the nat table
// about the first packet of a flow only, so an entry outlives them.
//
// It works in the network namespace of the calling thread and needs CAP_NET_ADMIN. It keeps no state. On other systems
// than Linux every call returns errors.ErrUnsupported.
//
// Goroutines: one for each Listen, which Close joins.
package conntrack
