// Command sctp measures what a message over SCTP costs by Sluice, and beside it, as
// ceilings, by the kernel's own paths: address translation by iptables, ipvs where the
// kernel has it, and a route straight to the server.
//
//	make bench-sctp
//
// which is
//
//	CGO_ENABLED=0 go run ./bench/sctp -sluice bin/sluice -vm bin/vm -out bench/results/sctp.md
//
// With -vm it also measures in the machine of bench/vm, whose kernel has SCTP and ipvs;
// programs that go there must be linked statically.
//
// The figure is the processor time of the whole machine per message, clients and
// servers included, since the kernel's paths run in whoever's time it is; so what
// counts are differences to the route. Sluice's own time stands beside it. Rounds are
// interleaved and medians shown; the machine should be idle. One association sends one
// way, by the kernel's SCTP or, where it has none, by usrsctp's tsctp, which checks and
// computes CRC32c in user space.
package main
