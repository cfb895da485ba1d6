// Package load makes load and answers it, for what the well-known tools cannot do:
// short connections with the latency of each, many UDP flows with a window each, sent
// one by one or as a GSO batch, and every loss counted, thousands of idle connections, and answers of mixed sizes. It
// also has the proxy that most Go programs would be, as a peer to measure against.
//
// A role runs in a process of its own, so that the work of one is never counted as
// that of another: the program re-executes itself with a role and its configuration
// as arguments ([Main]). Client and server are single-threaded epoll loops that take
// as little of the machine as they can. A server gets its sockets by inheritance, and
// so serves several hosts from one process.
//
// The client prints the line "begin" when its warm-up is over, and at the end of the
// time to measure one line of JSON, a [Result].
package load
