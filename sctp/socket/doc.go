// Package socket forwards SCTP by the kernel's one-to-one sockets (RFC 6458), with session's listeners, dials and
// limits.
//
// Each association of a client ends at this host, and another one goes to its backend. Messages keep their boundaries,
// stream, payload protocol id, and whether they are ordered; the backend is asked for as many streams as the client
// has. A long message, which the kernel returns in parts and accepts only whole, is put together here (maxMessage).
//
// When one side shuts down the other one is shut down after the last message. An ABORT becomes an ABORT. SCTP has no
// half-open associations: what the other side has under way by then is lost. A client that begins its association anew,
// from the same port, is served as a new one.
//
// Every socket is bound to one address: an unbound one would tell its peer all addresses of the host, past the rules
// that steer here. A listener passes what it accepts to one loop after the other.
package socket
