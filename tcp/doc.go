// Package tcp forwards TCP connections: it accepts them, asks a Balancer for a backend, dials it and moves bytes
// both ways until both directions have ended.
//
// # Life of a connection
//
//  1. Accepted on one of the loops, which is the connection's from then on. A client that asks for no Service, or one
//     without a backend, is reset.
//  2. A non-blocking connect, and the next backend's at once if it is refused, or after the attempt's timeout. What
//     the client sends meanwhile waits in its socket.
//  3. If the Service requests it, a PROXY header: it waits for the backend, from when that has accepted, as bytes of
//     the client do that were read; but it is not counted.
//  4. Relay. A direction is read only while its other side takes bytes, so at most one read (eventloop.ScratchSize)
//     waits in user space for each direction, and a connection in which nothing waits owns no buffer.
//  5. The end of one direction (FIN) is passed on when all bytes before it have been written; the other direction goes
//     on. A reset, and any other error, on one side becomes a reset of the other.
//
// Accepting, dialling, limits and draining are those of package session. Urgent data (RFC 6093) is not passed on as
// urgent; the urgent byte is left out.
//
// # Hand-over
//
// On Linux another process can take everything over: Offer shows relaying connections while they go on, Freeze returns
// the whole state of each while the loops are halted, and the Adopt methods of a Server there continue them. Bytes in
// socket queues and clients in listen queues stay in the kernel. From its offer on a connection ends by shutdown(2) or
// an explicit reset, since the other process has its descriptors.
//
// # Without loops
//
// A Server without Loops, as on systems other than Linux, does all of this by goroutines (goroutine_*.go): one for each
// listener and two for each connection, which Close and Shutdown join. An idle connection costs 8 KiB of buffers. Up
// to 4 KiB of what a client sends early wait in user space. Server.MaxDials bounds the connects of all. A listener
// that is closed resets clients that wait in it; one connection waits beyond the limits. Nothing can be handed over.
package tcp
