// Package report says what conntrack knows of connections and flows that the kernel forwards for Services: a line of
// the access log for each that has ended (log.go), and those that are open, each (list.go) or counted by Service and
// endpoint (count.go). It also ends what is open to drained endpoints at their deadlines (drained.go).
//
// It subscribes to conntrack only while a Service on a kernel path is logged, or what has ended is counted, and before
// the kernel has the rules of such a Service (Expect). It lists entries only while it is asked. Counts are exact but
// for what conntrack had while nothing listened, and for events that found the buffer full (flows.Watch.Stats).
//
// Why user space has chosen an endpoint, on data path queue, is remembered until the flow ends or many others have come
// since (whys.go). Counts and reasons cross hand-overs. During one, an end may be logged twice or not at all, and may
// not be counted.
//
// Goroutines: that of Run. Errors are logged once for each time that they begin.
package report
