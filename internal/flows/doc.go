// Package flows has what conntrack says of flows, and deletes the entries that keep packets where they do not belong.
//
// Netfilter looks at rules only for the first packet of a flow. After that conntrack's entry says where the packets go,
// so that an entry outlives the rules, the socket or the endpoint that it leads to. A writer of rules says for each
// frontend of UDP and SCTP what serves it (Place); Stale compares entries with that and deletes those that are wrong.
//
// An answered flow of UDP stays where it is when its Service moves to another path and the endpoint stays: an answer
// may be under way. TCP ends with its endpoint, but for connections to a Service that came after their first packet.
//
// What an earlier process, which has crashed, sent to frontends that no Service has any more is left to conntrack's
// timeouts, as with kube-proxy.
package flows
