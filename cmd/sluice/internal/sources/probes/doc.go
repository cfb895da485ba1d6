// Package probes reads the annotation sluice.io/readiness-probe, and asks an endpoint once in the way that it says.
//
// The annotation is a probe in the words of Kubernetes' readinessProbe (core/v1 Probe), as JSON or YAML: tcpSocket,
// httpGet or grpc, with initialDelaySeconds (0), periodSeconds (10), timeoutSeconds (1, at most 10), successThreshold
// (1) and failureThreshold (3). Two more handlers ask by UDP: dns and udp. The annotation differs from the kubelet's
// in this: each node makes its own checks of all endpoints; the port is a number, and 0 or none is the endpoint's own;
// a redirection passes, and is not followed; exec is refused; and a check of a port that gets PROXY headers has one,
// too, which says that it is the proxy's own.
//
// Goroutines: none that outlive a call.
package probes
