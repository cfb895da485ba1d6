// Package socket is the few socket calls that the data path needs and that
// golang.org/x/sys offers only with an allocation per call: accept, connect,
// bind and names, with netip.AddrPort instead of the unix.Sockaddr interface.
//
// All calls are for non-blocking sockets, and so are made without telling the Go
// scheduler (RawSyscall), which would cost as much as the shorter of them. Errors are bare errno values, so that
// a caller can compare them and nothing is allocated; the caller adds the words.
package socket
