// Command offload measures what it costs to have the kernel forward Services: the time
// to write the rules of 1,000, 5,000 and 10,000 Services, to change one of them, and
// to verify them, and the time of a first connection, in a namespace of its own. It
// prints a table, with the figures that others have published for kube-proxy below it;
// those were taken elsewhere, and tell the order of magnitude only.
//
//	go run ./bench/offload
package main
