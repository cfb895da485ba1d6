// Package lb says what is to be balanced. It holds the vocabulary of the program
// (protocol, address, backend, service, what a service requests, how a connection
// ends) and is pure: no goroutine, lock, clock, socket, log or Kubernetes type. All
// of it is immutable once it is made. What runs is in lb/balancer, which the control
// plane does not import.
//
// A [Table] is everything that is to be balanced at one moment, immutable and
// indexed by the addresses that clients ask for. [Table.Next] makes a new one, and the
// [Delta] that all who act on the change use. What is wrong in the input is refused in its
// smallest part and reported, and the rest works.
//
// A service port has two sets of eligible backends: one for policy Cluster, narrowed by
// topology hints, and one for policy Local. Which one it is depends on the [Address] asked
// for, and on whether the client is on this [Node]. Source ranges come first. What a pick
// would answer is known before a client asks ([Service.Verdicts]).
//
// A service has the same slot in every table that is made from one that had it. So who
// keeps something for each service keeps it beside the table, by slot, and a change
// costs what changes ([Table.Slots], [Table.Page]).
package lb
