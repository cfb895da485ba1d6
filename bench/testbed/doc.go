// Package testbed builds whole hosts out of Linux network namespaces, for tests
// and for programs such as the benchmarks: clients, a node, its pods, and pods of
// another node, wired as a small cluster is.
//
//	                192.0.2.0/24  2001:db8:1::/64
//	client-0 .100 ----.
//	client-1 .101 ----+
//	                  +---- router .1 (an Ethernet switch that also owns .1)
//	node .10 and .11 -+
//	remote-node .20 --'
//	  |       |
//	  |       '- cni0 10.244.2.1/24  2001:db8:244:2::1/64 - remote-pod-0 .10, ...
//	  '--------- cni0 10.244.1.1/24  2001:db8:244:1::1/64 - pod-0 .10, pod-1 .11, ...
//
// The last group of an IPv6 address is written with the digits of the last byte
// of its IPv4 address: 10.244.1.12 is also 2001:db8:244:1::12.
//
// What can be relied on:
//
//   - Clients, pods, and the remote node have their default route, directly or
//     through their own node, to the node. So every address that nobody owns -
//     cluster IPs (10.96.0.0/12 and any other range), external and load-balancer
//     addresses (198.51.100.0/24, 203.0.113.0/24) - reaches the node, which is
//     where a proxy runs. What the node does not take goes to the router, which
//     drops it without a word, as the Internet would.
//   - Nothing is left behind: a namespace has no name, it is held by a descriptor,
//     and processes started in one die with the program that started them.
//   - The program's own network namespace and its rules are never changed. [Main]
//     and [Reexec] go further: they run the program in throw-away namespaces, as
//     root or not, so that even a mistake in a test cannot reach the machine.
//   - Addresses work as soon as [New] returns (no duplicate address detection,
//     link-layer addresses known in advance), and a host that is black-holed with
//     [Host.Blackhole] is silent: no reset, no ICMP, no failed ARP.
//   - The kernel's limit on ICMP errors is lifted, so that a refusal is seen each
//     time, and SCTP checksums are computed by the sender, so that a user-space
//     SCTP stack sees them whole.
//
// Each [Testbed] has one goroutine, on a thread of its own, which starts
// processes; each [Server] has one, and one more for each connection. They are
// joined by Close.
package testbed
