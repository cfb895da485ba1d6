// Package lb decides which backend a connection goes to. It holds the vocabulary
// of the program (protocol, address, backend, service) and is pure: no
// goroutine, clock, socket, log or Kubernetes type. Time comes in as an argument,
// in nanoseconds of a monotonic clock.
//
// # Tables
//
// A [Table] is everything that is to be balanced at one moment, immutable and
// indexed by the addresses clients ask for. Every change makes a whole new one;
// there are no deltas, so no order of events can lead to a wrong state. What is
// wrong in the input is refused in its smallest part and reported, and the rest
// works.
//
// # Choosing
//
// A [Balancer] answers for the current table. The data path does, for each
// connection:
//
//	var tried lb.Tried
//	for range attempts {
//		choice, err := balancer.Pick(lb.Flow{Frontend: f, Client: c, Now: now, Tried: &tried})
//		if err != nil {
//			break // refuse or drop: one of the errors of this package
//		}
//		if err := connect(choice.Backend()); err != nil {
//			choice.Done(err)
//			tried.Add(choice)
//			continue
//		}
//		// ... until the connection ends ...
//		choice.Done(nil)
//		break
//	}
//
// Pick promises:
//
//   - Turns are exact. In any n picks in a row without affinity, each of the n
//     eligible backends of a service is chosen once, no matter how many
//     goroutines pick.
//   - A change of backends disturbs nobody else: the others keep their order,
//     and the round goes on where it was.
//   - A failed attempt goes elsewhere, and takes no turn from others: retries go
//     round on their own, so that all others share the load of one that fails.
//   - A client of a service with affinity keeps its backend across tables and
//     addresses, for as long as that is eligible and the client comes back within
//     the timeout. A change of the timeout counts at once.
//   - It is atomic with respect to tables, waits for nothing but other clients of
//     the same service with affinity, and does not allocate.
//
// # Policies
//
// A service port has two sets of eligible backends, with turns of their own: one for
// policy Cluster, narrowed by topology hints, and one for policy Local. Which one it
// is depends on the [Address] asked for, and on whether the client is on this
// [Node]: what policy Local keeps on the node is traffic that came to it from
// outside. Source ranges belong to an address too, and come first. What Pick would
// say to those inside and outside can be known before they ask ([Service.Verdicts]),
// so that those who get nothing need not be accepted.
//
// # What outlives a table
//
// Round-robin position, affinity and counters belong to the [ID] of a service
// port and are kept from table to table until a table comes without it. They
// survive changes of addresses, of backends (even to none) and of affinity. A
// [Choice] may be used after its backend and its service have gone.
package lb
