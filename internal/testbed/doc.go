// Package testbed is the lab of tests and measurements: hosts made of Linux network namespaces, programs in them, and
// what tests ask and wait for. A test makes a node with two pods and Sluice, and a client asks a Service by UDP:
//
//	l := lab.New(t, testbed.Config{Pods: 2}) // of cmd/sluice/internal/e2e/lab
//	for _, pod := range l.Pods {
//		testbed.Keep(t)(pod.WhoUDP(pod.At(false, 5353).String()))
//	}
//	l.Publish("dns", "10.96.0.53:53", "UDP", "", 5353, l.Pods...)
//	l.Start()
//	got := l.Client.Ask("udp", "10.96.0.53:53", testbed.Patience) // "pod-0" or "pod-1"
//
// Two packages take a [Config] and put what they test on the node: kernelmodes/lab one engine alone, without a process
// of Sluice, and cmd/sluice/internal/e2e/lab the whole program. [NewHostsT] makes hosts without links, which [Cable]
// joins, and [New] this cluster:
//
//	client-0 192.0.2.100, ... ----+---- router 192.0.2.1, 2001:db8:1::1 (an Ethernet switch)
//	node 192.0.2.10 and .11 ------+
//	  '- cni0 10.244.1.1/24  2001:db8:244:1::1/64 - pod-0 .10, pod-1 .11, ...
//	remote-node 192.0.2.20 -------+
//	  '- cni0 10.244.2.1/24  2001:db8:244:2::1/64 - remote-pod-0 .10, ...
//
// A host's IPv6 address ends with the digits of its IPv4 address. Every address that no host owns (cluster IPs,
// external addresses) is routed to the node, where a proxy runs; what the node does not take goes to the router, which
// drops it without an answer. Addresses work when [New] returns. ICMP errors are not limited in number, and senders
// compute SCTP checksums. Nothing is left behind: a namespace has no name, and its processes are killed when their
// Testbed is closed or the program ends. [Main] and [Reexec] give the program namespaces of its own, as root or not.
//
// What a test asks for, and where it is:
//
//	the test's goroutine on a host       Host.Enter, Host.Do; the whole process: Config.Here, HereT
//	an address of a family               Host.Addr, Host.At, VIP, PodNet
//	a server                             Host.WhoTCP, WhoUDP, EchoTCP, EchoUDP, Peer, Answer; Keep
//	a client, from an address or port    Host.Ask, AskFrom; Dial and Talker for a connection
//	clients that ask during a change     Repeat
//	a program on a host                  Host.Run, Command, Self; Run and Feed where the test is
//	Sluice on a host                     Cmd.Launch, Process.Healthy, Host.Page, Metric
//	what Sluice reads                    ServiceManifest, SliceManifest, Annotated, WriteManifest
//	each backend of iptables             EachIPTables, WrapIPTables
//	a setting of the kernel, a counter   Host.Sysctl, SysctlT, Host.Counter
//	waiting; comparing before and after  Eventually, Within, Poll; Host.KernelState, NoLeaks
//
// What needs ip_vs, kernel SCTP or dummy devices runs in the virtual machine of bench/vm: go test -exec bin/vm.
// [Missing] and [MissingUnless] skip a test where something is missing, or fail it in CI. A [Testbed] has one
// goroutine, which starts processes; a [Server] and a [Process] one each, and one for each connection or client of
// [Repeat].
package testbed
