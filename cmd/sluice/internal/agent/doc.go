// Package agent applies a new set of Services to the data path in an order in
// which no packet is ever steered to a socket that is not there, and no socket
// asks for a Service that the table does not hold.
//
// Goroutines: none of its own; Agent.Run is one goroutine's whole work, and
// everything but Submit, Status and the counters belongs to it.
package agent
