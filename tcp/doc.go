// Package tcp forwards TCP connections: it accepts them, asks an lb.Balancer for
// a backend, dials it and moves bytes both ways until both directions have ended.
//
// # Life of a connection
//
//  1. Accepted on one of the loops, non-blocking. The loop of the listening socket is the
//     connection's; no other one ever touches it.
//  2. The local address of the socket, or Server.OriginalDst, is the frontend that the client
//     asked for; the balancer picks a backend. Without a Service or a backend the client is reset.
//  3. A non-blocking connect. If it is refused the next backend is tried at once; if it
//     is not answered within the attempt's timeout (Server.DialTimeouts), the next
//     after that. What the client sends meanwhile waits in its socket.
//  4. Relay. A direction is read only while its other side takes bytes, so at most
//     one read (eventloop.ScratchSize) waits in user space for each direction, and
//     a connection in which nothing waits owns no buffer.
//  5. The end of one direction (FIN) is passed on as a shutdown of that direction
//     when all bytes before it have been written; the other direction goes on. A
//     reset, and any other error, on one side becomes a reset of the other.
//
// Steps 1 to 3, the limits (Server.Descriptors, Server.MaxDials) and draining are those of package
// session. Urgent data (RFC 6093) is not passed on as urgent; the urgent byte is left out.
//
// # Hand-over
//
// On Linux another process can take everything over: Offer shows relaying connections while
// they go on, Freeze returns the whole state of each while the loops are halted, and
// the Adopt methods of a Server there continue them. Bytes in socket queues and clients in
// listen queues stay in the kernel. From its offer on a connection ends by shutdown(2) or an
// explicit reset, since the other process has its descriptors.
//
// # Without loops
//
// A Server without Loops, as on systems other than Linux, does all of this by goroutines (goroutine_*.go):
// one for each listener and two for each connection, which Close and Shutdown join. A connection costs
// 8 KiB of buffers when it is idle. Up to 4 KiB of what a client sends before its backend has answered wait in
// user space. Server.MaxDials bounds the connects of all. A listener that is closed resets what the system
// has completed and it has not accepted; one connection waits beyond the limits. Nothing can be handed over.
package tcp
