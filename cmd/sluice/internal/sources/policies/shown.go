package policies

import (
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-lb/sluice/lb"
)

// hidden stands for what is not shown, since it may be a credential.
const hidden = "..."

// handlers are the ways to check an endpoint.
var handlers = []string{"tcpSocket", "httpGet", "grpc", "dns", "udp", "exec"}

// Shown returns what is requested, without credentials: a probe by its handler, port and period alone. Empty:
// nothing is requested.
func (p *Policy) Shown(of *lb.Policies) string {
	if value := p.Get(of); p.Word != readinessProbe || value == "" {
		return value
	}
	return shownProbe(of.ReadinessProbe)
}

// shownProbe leaves out of a probe what may be a credential: paths with queries, headers, and what is sent and
// expected.
func shownProbe(text string) string {
	var probe struct {
		PeriodSeconds int `yaml:"periodSeconds"`
	}
	var all map[string]any
	if yaml.Unmarshal([]byte(text), &all) != nil || yaml.Unmarshal([]byte(text), &probe) != nil {
		return hidden
	}
	for _, handler := range handlers {
		given, ok := all[handler]
		if !ok {
			continue
		}
		fields, _ := given.(map[string]any)
		port := ""
		if n, ok := fields["port"].(int); ok {
			port = fmt.Sprintf("port: %d, ", n)
		}
		period := ""
		if probe.PeriodSeconds > 0 {
			period = fmt.Sprintf(", periodSeconds: %d", probe.PeriodSeconds)
		}
		return fmt.Sprintf("{%s: {%s%s}%s}", handler, port, hidden, period)
	}
	return hidden
}
