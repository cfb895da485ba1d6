// Package e2e tests Sluice against a real Kubernetes API server: the cases of the
// upstream end-to-end suite (test/e2e/network in Kubernetes 1.36) that concern a
// proxy, and what happens to Sluice when the control plane does not behave.
//
// kube-apiserver and etcd run on the router of package testbed, Sluice on the node,
// with RBAC on and no rights but those of the ClusterRole in deploy/base. Pods are
// hosts of the testbed; the tests write their EndpointSlices, as the controller
// would, and what they expect is what clients see. After each test the API server's
// audit log is read: Sluice must not have asked for anything that it may not do.
//
// "make e2e" gets all that is needed and runs everything, once on the distribution's
// etcd, with which an API server answers lists, and TestWatch* once more on a present
// one, with which it streams them. Without anything in Go's build cache the API server
// is built in 3 minutes on two busy cores (5.5 minutes of CPU), with it in seconds;
// the tests take about 3 minutes. The outage of the control plane lasts 10 s:
// "go test -run TestWatchControlPlaneAway . -outage 1m" has a longer one.
//
// # Where the upstream cases are
//
// Here, but for those marked with *, which cmd/sluice/internal/e2e has, from manifests:
//
//	service.go
//	  basic endpoint, up and down, hairpin, pods and nodes       TestWatchLifeOfAService
//	  multiport, ports added and deleted, named and different
//	  target ports, restartable init containers' ports,
//	  same port of two protocols                                 TestPorts
//	  after the Service was recreated                            TestComeAndGo
//	  after kube-proxy restarted                                 TestRestartOfSluice, TestCrash*, TestUpgradesUnderLoad*
//	  preserve the source address of pods (in the kernel; the
//	  data path in user space ends connections)                  TestSourceAddress
//	  after the API server restarted                             TestRestartsOfTheServer, TestWatchControlPlaneAway
//	  NodePort, ExternalIP, every change of type                 TestTypes
//	  NodePort released on delete, taken by another              TestTypes, TestNodePortConflict*
//	  unready pods, publishNotReadyAddresses, evicted pods,
//	  fallback to terminating endpoints (both policies)          TestReadiness
//	  session affinity, timeout, switch (cluster IP, NodePort,
//	  load balancer with either policy)                          TestAffinity
//	  service-proxy-name                                         TestWatchLifeOfAService, TestServiceProxyName*
//	  headless label                                             TestHeadlessLabel
//	  no endpoints: refused                                      TestWatchLifeOfAService, TestNoEndpoints*
//	  internal and external traffic policy Local, host network   TestPolicies, TestMatrix*
//	  health check node port, following the policy               TestHealthCheckNodePort
//	  same port of two protocols on a load balancer              TestMatrix*
//	networking.go
//	  pod, node, endpoint to Service, http, udp and sctp         TestWatchLifeOfAService, TestMatrix*, TestSCTP*
//	  several Services with the same endpoints                   TestComeAndGo
//	  update of endpoints and of the node port, http and udp     TestWatchLifeOfAService, TestTypes, TestPolicies
//	  client IP affinity, http and udp                           TestAffinity, TestAffinity*
//	  large requests, http and udp                               TestBulkBothWays*, TestLargestDatagram*
//	  endpoints on the host's network                            TestPolicies
//	  kube-proxy's URLs                                          TestURLs
//	  rules that are deleted come back                           TestRulesAreRepaired*
//	conntrack.go
//	  UDP while the pod cycles (NodePort, ClusterIP, policy
//	  Local, client on the host), unready endpoints that get
//	  ready, another target port                                 TestUDPWhileAPodCycles, TestStaleUDPEntries*
//	  packets of an invalid state                                TestInvalidConntrackState
//	dual_stack.go
//	  v4, v6, v4v6, v6v4                                         TestDualStack
//	loadbalancer.go
//	  type and ports, no node ports, source ranges               TestTypes, TestLoadBalancer, TestSourceRanges*
//	  no disruption by a rolling update                          TestRollingUpdate
//	  UDP while the pod cycles                                   TestUDPWhileAPodCycles
//	  only nodes with endpoints (ESIPP), from pods               TestPolicies, TestHealthCheckNodePort
//	  and with the client's address (in the kernel)              TestSourceAddress
//	topology_hints.go, traffic_distribution.go                   TestDistribution
//	endpointslice.go
//	  several slices, ports and addresses                        TestWatchLifeOfAService, TestPorts
//	service_latency.go                                           BenchmarkScale
//	kube_proxy.go
//	  timeout of CLOSE_WAIT                                      the tests of --conntrack-* in redirect and config
//	SCTP Services                                                TestSCTP*
//	all of it by the kernel's data paths, and from one to
//	another                                                      TestMatrix*, TestModel*, TestMove*
//	what deploy has, applied                                     TestOverlays
//	the configuration files and flags of operators               TestSamples
//
// Not here: the metric of nfacct, which counts what kube-proxy's own rules drop (those of
// Sluice count for themselves, "iptables-save -c"); and what no proxy has a part in: pods
// that reach pods without a Service (no_snat.go), node port collisions and ranges and
// Service CIDRs (the API server refuses them), HostPort (the runtime of containers),
// names (the DNS server).
//
// # At scale
//
// BenchmarkScale, 5,000 Services with 50,000 endpoints in 5,000 slices, on two cores
// that other programs kept busy (load 9 and 12), November 2026:
//
//	                                                     listed         streamed
//	ready after its start                                0.57 s         0.82 s
//	resident memory when ready, after changes, most      108, 108, 123  81, 99, 101 MiB
//	from the watch event until a client notices          27 ms          20 ms
//	the longest of 20                                    43 ms          27 ms
//	1,000 changed slices: written in, tables made        1.6 s, 23      1.1 s, 35
package e2e
