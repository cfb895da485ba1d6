// Package balancer decides which backend a connection goes to, by a table of lb, and keeps what
// runs: counters, health, queues, affinity. It has no goroutine, clock, socket or log: time comes in
// as an argument, in nanoseconds of a monotonic clock.
//
// A [Balancer] answers for the current table. The data path does, for each
// connection:
//
//	var tried balancer.Tried
//	for range attempts {
//		choice, err := b.Pick(balancer.Flow{Frontend: f, Client: c, Now: now, Tried: &tried})
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
// The rest is in parts: [Health], [Queues], [Memory] and [Counters].
//
// Round robin is exact: in any n picks in a row without affinity, each of the n eligible backends of a service is
// chosen once, or as often as its weight says, no matter how many goroutines pick. After a change the round goes on
// where it was. Retries have a round of their own, so that all share the load of a backend that fails. Other algorithms
// go by what is in flight, by how long connects take, by chance or by a hash of the client.
//
// Backends that fail in a row while others of their service answer are ejected: a condition beside those of
// Kubernetes, so that affinity, retries and rounds are among the rest.
//
// Position, affinity, conversations of UDP clients and counters belong to the ID of a service port and are kept until
// a table comes without it. A [Choice] may be used after its backend and its service have gone.
package balancer
