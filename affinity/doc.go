// Package affinity remembers which backend a client was last sent to, which is
// what a Service with sessionAffinity: ClientIP asks for, and a UDP client that pauses.
//
// There is one [Table] per service port, so that deleting a service frees its
// memory at once and no service key has to be stored or hashed. By a [Key] a client is an
// address without a port: all its connections stay together, and behind one NAT
// all clients are one client, as with kube-proxy.
//
// The timeout counts from the last new connection. Every entry of a table has the same timeout,
// therefore the order of last use is also the order of expiry, and sweeping costs only as much
// as there is to remove.
//
// The memory is bounded: the least recently used client is evicted when the table is
// full and merely gets a new backend, and the eviction is counted.
//
// The package is pure: it starts no goroutine and reads no clock. Each call says
// what time it is, in nanoseconds of a monotonic clock of the caller's choice.
package affinity
