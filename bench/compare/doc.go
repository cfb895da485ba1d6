// Command compare measures Sluice beside its peers, in one run, on this machine:
// HAProxy, nginx with its stream module, a proxy of two goroutines per connection,
// and as ceilings the kernel's own paths, address translation by iptables, also by Sluice's
// path queue, ipvs where the kernel has it, and a route straight to the servers.
//
//	bin/compare -sluice bin/sluice            # everything, about 45 minutes
//	bin/compare -sluice bin/sluice -quick     # under 5 minutes
//	bin/compare -list
//
// A run ends before anything is measured if a program is missing, or what a flag names. What a pattern matches and the
// machine cannot run is left out, with the reason. The exit status is 1 if something that was to be measured was not. A
// run that flags restrict names the targets that it leaves out.
//
// What makes the figures comparable:
//
//   - All systems run in the same place: a client host, the node, and three server hosts, which are network namespaces
//     joined by virtual Ethernet (internal/testbed). Clients ask the same addresses, and proxies get packets by
//     REDIRECT. Every table names the versions. HAProxy and nginx are those of "make peers" beside this program, else
//     the machine's.
//   - Each proxy has one worker, which alone is pinned to one core; load, servers and this program are on the other
//     cores. What the kernel forwards it does on these, and Sluice may use all cores where it chooses for the kernel
//     (queue).
//   - Runs are interleaved: in each round every system runs once for a workload, and the order rotates. Ratios are
//     taken within a round, because the processor's frequency and neighbours drift; figures of different rounds or runs
//     are not comparable. Shown are the median, the least and the greatest.
//   - What a target is for has all rounds. In a run of everything other ceilings, and
//     workloads without a target, have each third.
//   - Each run starts the proxy anew, with empty tables, and begins when that is idle. The machine
//     must be idle before; -force measures nevertheless, and the report says so.
//   - With -paired builds of Sluice run side by side instead, each with hosts of its own, and are asked in turns of
//     milliseconds: what else the machine does then happens to all, so it need not be idle. Numbers of Services are
//     compared so, too, and with -systems those, by the clock: client, kernel and servers share a core. So are
//     rr-64-turns and short-turns, whose clients stop (SIGSTOP) in the other's turn: rounds cannot tell whether a bound
//     of some per cent holds where the machine's pace changes within a second.
//   - Errors and lost datagrams are always shown: a system that loses some has less to do per answer.
//   - Ended connections and idle UDP flows leave the node's conntrack table within seconds. A figure is INVALID if the
//     table was nearly full, or the kernel dropped packets meanwhile (bench/tracking).
//
// The processor time of a process is its CLOCK_PROCESS_CPUTIME_ID, in nanoseconds. On kernels without
// CONFIG_IRQ_TIME_ACCOUNTING it contains the interrupts that happened to arrive while the process ran, and not those
// that ran in ksoftirqd. So the time that the whole core was not idle stands beside it, at the kernel's tick, and that
// of all cores, since what the kernel forwards it does in the time of those who send.
//
// The tools: wrk for requests and answers on connections that stay, and iperf3 for bulk, since they are well known.
// Short connections, UDP flows, idle connections and mixed sizes come from bench/load: wrk gives no latency of a
// connection as a whole, sockperf counts no loss for each of many flows, and dnsperf 2.10 gives no percentiles.
package main
