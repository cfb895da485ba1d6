// Package kernel is the system calls of the kernel's SCTP (RFC 6458; linux/sctp.h): options of sockets, and messages
// with their stream, payload protocol id and order.
package kernel
