// Package supervise is process 1 of a container, with which the container ends, so that the
// process that serves can be replaced by its child as on any host. It starts the program once
// more, which serves, and follows hand-overs by the messages of package notify: signals go to
// the process that serves, and its end is the end of the container. It reaps orphans.
//
// So a hand-over in a container is one like any other: there is one pause, Services are read
// once, and until the successor has everything any failure leaves the running process as it
// was. If process 1 served itself it would have to take everything back from its child by
// execve(2): two pauses, and a new start that could fail when all was given already.
//
// It costs 4 MB of memory of its own, and maps 3 MB of the program, which both processes share.
//
// Goroutines: one that reads messages, joined by Run.
package supervise
