// Package soak holds the attacks of one tenant on the others, as tests, and the soak, which runs them one after the
// other beside mixed traffic, changes and upgrades for as long as asked.
//
// The victims are the clients of Services that are not attacked: requests on open connections, new connections, UDP and
// SCTP, and those of Services on data path auto, which move. Whatever the attack, none of them may see an error. The
// figures of a soak are a row a minute.
package soak
