// Package lb decides which backend a connection goes to. It holds the vocabulary
// of the program (protocol, address, backend, service) and is pure: no
// goroutine, clock, socket, log or Kubernetes type. Time comes in as an argument,
// in nanoseconds of a monotonic clock.
//
// A [Table] is everything that is to be balanced at one moment, immutable and
// indexed by the addresses that clients ask for. [Table.Next] makes a new one, and the
// [Delta] that all who act on the change use. What is wrong in the input is refused in its
// smallest part and reported, and the rest works.
//
// A [Balancer] answers for the current table. The data path does, for each
// connection:
//
//	var tried lb.Tried
//	for range attempts {
//		choice, err := balancer.Pick(lb.Flow{Frontend: f, Client: c, Now: now, Tried: &tried})
//		if err != nil {
//			break // refuse or drop
//		}
//		if err := connect(choice.Backend()); err != nil {
//			choice.Failed(err, now)
//			tried.Add(choice)
//			continue
//		}
//		choice.Answered()
//		choice.Took(took, now)
//		// ... until the connection ends ...
//		choice.Done(nil)
//		break
//	}
//
// Round robin is exact: in any n picks in a row without affinity, each of the n eligible backends of a service is
// chosen once, or as often as its weight says, no matter how many goroutines pick. After a change the round goes on
// where it was. Retries have a round of their own, so that all share the load of a backend that fails. Other algorithms
// ([Algorithm]) go by what is in flight, by how long connects take, by chance or by a hash of the client.
//
// Backends that fail in a row while others of their service answer are ejected ([Outlier]): a condition beside those of
// Kubernetes, so that affinity, retries and rounds are among the rest.
//
// A service port has two sets of eligible backends: one for policy Cluster, narrowed by
// topology hints, and one for policy Local. Which one it is depends on the [Address] asked
// for, and on whether the client is on this [Node]. Source ranges come first. What Pick
// would answer is known before a client asks ([Service.Verdicts]).
//
// Position, affinity, conversations of UDP clients and counters belong to the [ID] of a service port and are kept until
// a table comes without it. A [Choice] may be used after its backend and its service have gone.
package lb
