// Package checks makes the active checks that Services request by the annotation sluice.io/readiness-probe, and tells a
// Balancer what comes of them.
//
// The annotation is a probe in the words of Kubernetes' readinessProbe (core/v1 Probe), as JSON or YAML: tcpSocket,
// httpGet or grpc, with initialDelaySeconds (0), periodSeconds (10), timeoutSeconds (1, at most 10), successThreshold
// (1) and failureThreshold (3). Two more handlers ask by UDP: dns and udp. The annotation differs from the kubelet's
// in this: each node makes its own checks of all endpoints; the port is a number, and 0 or none is the endpoint's own;
// a redirection passes, and is not followed; exec is refused; and a check of a port that gets PROXY headers has one,
// too, which says that it is the proxy's own. An endpoint counts as good until failureThreshold checks in a row have
// failed.
//
// Checks begin spread over their period. Each takes one of 256 slots, fewer where file descriptors are few. Namespaces
// get shares of the slots, and their Services take turns, so a tenant with many or silent endpoints delays its own
// checks only. What several ports of a Service have in common is checked once.
//
// Goroutines: those of the checks in flight, which Checker.Run joins.
package checks
