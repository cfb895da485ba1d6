// Package testbed is the lab of tests and measurements: hosts made of Linux network
// namespaces, programs in them, and what tests ask and wait for.
//
// A test makes a node with two pods, their servers, and a client that asks one of them:
//
//	tb := testbed.NewT(t, testbed.Config{Pods: 2})
//	for _, pod := range tb.Pods {
//		testbed.Keep(t)(pod.WhoTCP(":8080"))
//	}
//	got := tb.Client.Ask("tcp", tb.Pods[1].At(false, 8080).String(), testbed.Patience) // "pod-1"
//
// Labs of other packages put what they test on tb.Node, and are made with the same [Config].
//
// [New] builds a small cluster, [NewHostsT] hosts without links, which [Cable] joins:
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
// The last group of an IPv6 address is written with the digits of the last byte of its
// IPv4 address: 10.244.1.12 is also 2001:db8:244:1::12.
//
//   - Every address that no host owns (cluster IPs, external addresses) is routed to the
//     node, where a proxy runs. What the node does not take goes to the router, which
//     drops it without an answer.
//   - Nothing is left behind: a namespace has no name, and processes in it are killed
//     when their Testbed is closed or the program ends. The program's own namespace is
//     changed by Config.Here alone; [Main] and [Reexec] run it in namespaces of its own, as root or not.
//   - Addresses work when [New] returns. A host that is black-holed by [Host.Blackhole]
//     answers nothing: no reset, no ICMP error, no failed ARP.
//   - ICMP errors are not limited in number, and senders compute SCTP checksums.
//
// What a test asks for, and where it is:
//
//	a host without links, or two         NewHostsT, Cable
//	the test's goroutine on a host       Host.Enter, Host.Do; the whole process: Config.Here, HereT
//	an address of a family               Host.Addr, Host.At, VIP, PodNet
//	a server                             Host.WhoTCP, EchoTCP, Peer, Answer; Keep
//	a client, from an address or port    Host.Ask, AskFrom; Dial and Talker for a connection
//	clients that ask during a change     Repeat
//	a program on a host                  Host.Run, Command, Self; Run and Feed where the test is
//	Sluice on a host                     Cmd.Launch, Process.Healthy, Host.Page, Metric
//	each backend of iptables             EachIPTables, WrapIPTables
//	a setting of the kernel              Host.Sysctl, SysctlT
//	waiting for something                Eventually, Within, Poll
//	before and after                     Host.KernelState, Counter, NoLeaks
//	what Sluice reads                    ServiceManifest, SliceManifest, WriteManifest
//
// What needs ip_vs, kernel SCTP or dummy devices runs in the virtual machine of bench/vm:
// go test -exec bin/vm. [Missing] and [MissingUnless] skip a test where something is
// missing, or fail it in CI.
//
// A [Testbed] has one goroutine, on a thread of its own, which starts processes. A
// [Server] and a [Process] have one each, a server one for each connection, and [Repeat] one
// for each client.
package testbed
