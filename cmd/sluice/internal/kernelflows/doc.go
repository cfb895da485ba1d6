// Package kernelflows says what conntrack knows of connections and flows that the kernel forwards for Services: a line
// of the access log for each that has ended, and those that are open for who looks at the process, each or counted by
// Service and endpoint.
//
// Run ends when the process begins to stop. In the moment of a hand-over an end may be logged twice, or not at all, and
// may not be counted.
//
// It listens to conntrack only while a Service on a kernel path is to be logged, or what has ended is to be counted,
// from before the kernel has its rules (Expect), and lists entries only while it is asked. What is counted so is exact,
// but for what conntrack has had already when nothing listened, and for events that find the buffer full (Stats).
//
// Why user space has chosen an endpoint, on data path queue, is remembered until the flow ends or many others have come
// since, across hand-overs, too.
//
// Goroutines: that of Run, and one that handles events meanwhile, which Run joins. Errors are logged once for each time
// that they begin.
package kernelflows
