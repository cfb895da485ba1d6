package metrics

import "github.com/prometheus/client_golang/prometheus"

// Register adds series of a part of the program that collects its own. It is for the
// start; a name that is taken already is a mistake of the program, and a panic.
func (m *Metrics) Register(c prometheus.Collector) { m.registry.MustRegister(c) }
