// Package socket forwards SCTP by the kernel's one-to-one sockets (RFC 6458): one association with the client, and
// one with its backend.
package socket
