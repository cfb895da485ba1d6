// Package handover gives everything that a running Sluice holds to the process that takes its
// place: listening sockets with what waits in their queues, every TCP connection, UDP flow
// and SCTP association, affinity, round robin positions and counters. Clients and servers do
// not notice. Package upgrade starts it.
//
// The two processes talk over a unix socket of type SOCK_SEQPACKET, whose messages carry file
// descriptors (SCM_RIGHTS, unix(7)). One that is long, or has more than 253 descriptors, crosses in
// pieces. G gives, T takes:
//
//	T  hello       version of the protocol, the network namespace
//	G  setup       the token, the table, events, what is listened on with the sockets
//	G  clients     affinity, what is used of rates, round robin positions (memory), whys
//	G  offers      file descriptors of connections that relay; all of them go on meanwhile
//	G  prepared    and T answers: ready
//	G  frozen      from here on nothing moves
//	G  conns       what became of each connection; new ones; flows, assocs; what has changed
//	G  commit      and T takes the token, answers committed, and sets all in motion
//
// Connections are copied first and frozen afterwards, as a virtual machine's memory is when it
// migrates. What is sent during the pause is small: a few bytes for each connection, and the
// bytes that it had in hand.
//
// The token is a pipe with one byte in it, of which both have the reading end: the process that
// reads the byte has everything. G reads it before it thaws what it has frozen, and T before it
// touches what it was given, so that at no point of any failure, be it that either is killed, or
// stopped and continued much later, both serve. It needs no last word: "committed" only saves G
// the wait. If G is killed, T serves what it was given by then; the other connections are reset.
//
// A process that speaks another version of the protocol is refused, with an error that says so. Within a version builds
// may differ: a record carries its length, so that a reader skips fields that it does not know and takes zero for
// missing ones (codec.record).
//
// Connections and flows have an encoding of their own, since during the pause a general one
// costs ten times as much; the rest is JSON. The socket lies in a directory that no other user
// may write to, and both sides trust only root and their own user (SO_PEERCRED).
//
// Each process has a clock of its own, so every time on it crosses as host time (codec.instant).
//
// Goroutines: none of its own.
package handover
