// Package handover gives everything that a running Sluice holds to the process that
// takes its place: listening sockets with what waits in their queues, every TCP
// connection, UDP flow and SCTP association, affinity, turns and counters. Clients and
// servers do not notice. The successor is a child of the running process (an upgrade in place), or a
// stranger that finds it by a unix socket (a new pod on the same node).
//
// # What crosses, and when
//
// The two talk over a unix socket of type SOCK_SEQPACKET, whose messages carry
// descriptors (SCM_RIGHTS, unix(7)), at most 253 each. G is who gives, T who takes:
//
//	T  hello       versions of the protocol, the network namespace
//	G  welcome     the version to use, and the token
//	G  setup       the table, what is listened on, affinity, turns; then the sockets
//	G  offers      descriptors of connections that relay; all of them go on meanwhile
//	G  prepared    and T answers: ready
//	G  frozen      from here on nothing moves
//	G  state       what became of each connection; new ones; flows; what has changed
//	G  commit      and T takes the token, answers committed, and sets all in motion
//
// Connections are copied first and frozen afterwards, as a virtual machine's memory
// is when it migrates. What is sent while all stands still is small: a few bytes for
// each connection, and the bytes that it had in hand.
//
// # Who has it
//
// The token is a pipe with one byte in it, of which both have the reading end.
// Whoever reads the byte has everything. G reads it before it thaws what it has
// frozen, and T before it touches what it was given, so that at no point of
// any failure, be it that either is killed, or stopped and continued much later,
// do both serve. It needs no last word: "committed" only saves G the wait.
//
// If G is killed, T serves what it was given by then: the listening sockets, affinity,
// and those connections of which it knows the state. The others are reset.
//
// # Compatibility
//
// A version is a number, which a change raises that makes an older decoder fail or
// misunderstand. Each side names the oldest and the newest that it can; the newest that
// both can is used, and if there is none nothing happens. Within a version records and
// messages only grow: each record says its length, what a decoder does not know at the
// end of one is left out, and what is missing there is zero. Messages and parts of
// types above 127 are skipped by who does not know them. Others come only to who said
// hello with the ability to use them (SCTP), and who cannot is refused if there is
// something to lose. testdata holds messages of each version.
//
// The encoding is our own, for two reasons: while connections are frozen a general one
// costs ten times as much, and what comes from another process is to be bounded before
// it is believed, which is a length check here. What is sent before the freeze, and can
// hold anything that a Service can, is JSON.
//
// # Trust
//
// The socket lies in a directory that nobody else may enter, and who connects must be
// root or the same user (SO_PEERCRED). Both must be in the same network namespace, or
// listening sockets would be in the wrong one.
//
// Goroutines: none of its own.
package handover
