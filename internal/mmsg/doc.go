// Package mmsg receives and sends batches of datagrams by one system call (recvmmsg(2),
// sendmmsg(2)), and reads and writes their control messages (cmsg(3)). Nothing is allocated
// but by NewReader.
//
// All calls are for non-blocking sockets and never wait, and so are made without telling Go's
// scheduler (RawSyscall6): it would take the loop's processor away after 20 us, which a batch
// of large sends can last, and have to give it back. Errors are bare errno values.
package mmsg
