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
// # Goroutines
//
// The package starts none: all work runs on the loops of Server.Loops.
//
// TCP urgent data (RFC 6093) is not passed on as urgent; the urgent byte is left out.
package tcp
