// Package api is how a running Sluice is looked at: resources as JSON by HTTP on a unix socket that root and its own
// user may connect to, and on the metrics address, where package status says who may ask. They are read only; what
// changes something has Writer, which nothing but the socket serves.
//
// Each resource is a row of resources (server.go), a type (types.go) and a function that makes it of Sources; a new one
// needs these three. Paths begin with the version: what is added to an answer is no new version, what goes or changes
// its meaning is.
//
// Lists come in pages of a bounded size: List.Continue is what the next one is asked for by. A page is of one moment,
// and two pages are not; nothing that a page is made of stops a loop, or waits for one. Answers have what objects and
// endpoints say, as it is: who writes them to a terminal escapes it.
//
// Goroutines: none; who serves Handler has them. Client is for one goroutine.
package api
