package lab

import (
	"fmt"
	"strings"
)

// Movable is a Service that changes its data path.
type Movable struct {
	Name, Addr, Protocol string
	NodePort             int
	Port                 int // of the endpoints
	More                 string
	Path                 string
}

// Manifest returns the Service and its EndpointSlice.
func (m Movable) Manifest() string {
	ip, port, _ := strings.Cut(m.Addr, ":")
	s := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\n", m.Name)
	if m.Path != "" {
		s += fmt.Sprintf("  annotations: {sluice.io/data-path: %s}\n", m.Path)
	}
	s += fmt.Sprintf("spec:\n  clusterIP: %s\n  ports:\n  - port: %s\n    protocol: %s\n", ip, port, m.Protocol)
	if m.NodePort > 0 {
		s += fmt.Sprintf("    nodePort: %d\n  type: NodePort\n", m.NodePort)
	}
	return s + m.More
}
