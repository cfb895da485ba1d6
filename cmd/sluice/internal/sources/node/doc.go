// Package node is what the program asks of the host it runs on: the node's addresses, the
// instance lock, the limit on file descriptors, processors for event loops, the OOM score
// and the kernel settings of conntrack. It knows no Service.
//
// Goroutines: none.
package node
