package lab

import (
	"fmt"
	"strings"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// Movable is a Service that changes its data path.
type Movable struct {
	Name, Addr, Protocol string
	NodePort             int
	Port                 int // of the endpoints
	More                 string
	Path                 string // that it requests; empty: none
	Asks                 string // what else it requests, as "sluice.io/scheduler: lc"; empty: nothing
}

// Manifest returns the Service and its EndpointSlice.
func (m Movable) Manifest() string {
	var asks []string
	if m.Path != "" {
		asks = append(asks, "sluice.io/data-path: "+m.Path)
	}
	if m.Asks != "" {
		asks = append(asks, m.Asks)
	}
	more := m.More
	if m.NodePort > 0 {
		more = fmt.Sprintf("    nodePort: %d\n  type: NodePort\n", m.NodePort) + more
	}
	return testbed.Annotated(testbed.ServiceManifest(m.Name, m.Addr, m.Protocol, more), strings.Join(asks, ", "))
}

// SCTPService is the manifest of a Service with SCTP.
const SCTPService = `apiVersion: v1
kind: Service
metadata:
  name: sig
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.38
  clusterIPs: [10.96.0.38, "2001:db8:96::38"]
  ipFamilies: [IPv4, IPv6]
  externalIPs: [198.51.100.38]
  ports:
  - port: 3868
    protocol: SCTP
    nodePort: 30868
status:
  loadBalancer:
    ingress:
    - ip: 203.0.113.38
`
