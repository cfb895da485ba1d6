// Command offload measures what it costs to have the kernel forward Services, by iptables
// or ipvs: the time to write what 1,000, 5,000 and 10,000 Services need, to change one of
// them, and to verify them, and the time of a first connection, in a namespace of its own.
// It prints a table in Markdown, with the figures that others have published for
// kube-proxy below it; those were taken elsewhere, and tell the order of magnitude only.
//
//	make bench-offload
//	go run ./bench/offload
//
// The former writes bench/results/offload.md. It measures ipvs in the VM of bench/vm, with
// iptables beside it there, for the ratio: without KVM that machine is a slow one, with a
// clock of its own.
package main
