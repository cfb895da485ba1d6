// Package tcp forwards TCP connections: it accepts them, asks an lb.Balancer for
// a backend, dials it and moves bytes both ways until both directions have ended.
//
// # Life of a connection
//
//  1. Accepted on one of the loops, non-blocking. The socket in which it stays
//     decides its loop; nothing of it is ever touched by another.
//  2. The local address of the socket, or Server.OriginalDst, says which frontend
//     the client asked for; the balancer picks a backend. No such Service or no backend: the client is reset.
//  3. A non-blocking connect. If it is refused, the next backend is asked at once; if it
//     is not answered within the attempt's timeout (Server.DialTimeouts), the next
//     after that. What the client sends meanwhile waits in its socket.
//  4. Relay. A direction is read only while its other end takes bytes, so at most
//     one read (eventloop.ScratchSize) waits in user space for each direction, and
//     a connection in which nothing waits owns no buffer.
//  5. The end of one direction (FIN) is passed on as a shutdown of that direction
//     when all bytes before it have been written; the other direction goes on. A
//     reset, and any other error, on one side becomes a reset of the other.
//
// # Limits
//
// Server.Descriptors bounds the descriptors and Server.MaxDials the connects in
// flight. At a limit, and when the kernel is short of descriptors or memory,
// accepting pauses and is tried again every 10 ms: clients wait in the listen
// backlog. Each pause is counted in Stats.
//
// # Handing over
//
// On Linux another process can have everything: Offer shows relaying connections while
// they go on, Freeze says all there is to know of each while the loops are halted, and
// the Adopt methods of a Server there set it in motion. What a Frozen does not say is in
// the kernel: bytes in socket queues, clients in listen queues. From its offer on a
// connection ends by shutdown(2) or an explicit reset, since others have its descriptors.
//
// # Without loops
//
// A Server without Loops, as on systems other than Linux, does all of this by
// goroutines, with these differences. A connection costs 8 KiB of buffers and two
// goroutines when it is idle. What a client says before its backend has answered is
// read, up to 4 KiB, and waits in user space. Server.MaxDials bounds the connects of
// all. A listener that is closed resets what the system has completed and it has not
// accepted. One connection for each listener waits beyond the limits. Nothing can be
// handed over.
//
// # Goroutines
//
// The package starts none for a Server with Loops, on which all work runs. Without, there is one
// for each listener and two for each connection, which Close and Shutdown join.
//
// TCP urgent data (RFC 6093) is not passed on as urgent; the urgent byte is left out.
package tcp
