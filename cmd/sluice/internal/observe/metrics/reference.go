package metrics

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/checks"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/manifest"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// Description is a metric as documents show it.
type Description struct {
	Name, Type, Stability, Means string
	Labels                       []string
}

// Describe returns all metrics in the order of their names, but those of Go and of the process. It scrapes sources that
// have one of everything; more are parts of the program that collect their own.
func Describe(more ...prometheus.Collector) ([]Description, error) {
	m := New(oneOfEach())
	for _, c := range more {
		m.Register(c)
	}
	ctx, server := context.Background(), url.URL{Host: "192.0.2.1"}
	requests.Increment(ctx, "200", "GET", server.Host)
	retries.IncrementRetry(ctx, "429", "GET", server.Host)
	duration.Observe(ctx, "GET", server, time.Second)
	waited.Observe(ctx, "GET", server, time.Second)
	families, err := m.registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	var all []Description
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "go_") ||
			strings.HasPrefix(f.GetName(), "process_") || strings.HasPrefix(f.GetName(), "promhttp_") {
			continue
		}
		d := Description{Name: f.GetName(), Type: strings.ToLower(f.GetType().String())}
		var ok bool
		if d.Stability, d.Means, ok = strings.Cut(strings.TrimPrefix(f.GetHelp(), "["), "] "); !ok {
			return nil, fmt.Errorf("help of %s does not begin with a word of stability: %s", d.Name, f.GetHelp())
		}
		d.Stability = strings.ToLower(d.Stability)
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				if !slices.Contains(d.Labels, l.GetName()) {
					d.Labels = append(d.Labels, l.GetName())
				}
			}
		}
		all = append(all, d)
	}
	return all, nil
}

// oneOfEach returns sources of which each has something to count.
func oneOfEach() Sources {
	id := lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP}
	none := func() uint64 { return 0 }
	return Sources{
		TCP: func() tcp.Stats { return tcp.Stats{} }, UDP: func() udp.Stats { return udp.Stats{} },
		SCTP:         func() sctp.Stats { return sctp.Stats{} },
		SCTPEngine:   func() (sctp.Engine, string) { return sctp.Packet, "" },
		PacketFilter: "nftables", Detail: Detail{Services: 1, Endpoints: 1, All: true},
		Agent: func() agent.Status { return agent.Status{} },
		Manifests: func() manifest.Result {
			return manifest.Result{Problems: []*manifest.Error{{File: "web.yaml", Kind: manifest.Invalid}}}
		},
		APIServer:   func() Contact { return Contact{} },
		Conntrack:   func() (entries, limit int, err error) { return 0, 0, nil },
		Descriptors: new(eventloop.Budget),
		RefusedHTTP: func() uint64 { return 0 },
		AccessLog:   func() (written, dropped uint64) { return 0, 0 },
		LogDropped:  func() uint64 { return 0 },
		LostEvents:  func() uint64 { return 0 },
		Families: []Family{
			{Name: familyName(false), Stats: func() redirect.Stats {
				return redirect.Stats{Rules: map[string]int{"nat": 0}}
			}, Stale: none},
			{Name: familyName(true), Stats: func() redirect.Stats { return redirect.Stats{} }, NFTables: true,
				Stale: none, Engine: func() (nftables.Stats, bool) { return nftables.Stats{}, true }},
		},
		Services: func() []balancer.Stats { return []balancer.Stats{{ID: id, Backends: []balancer.BackendStats{{}}}} },
		Kernel: func() report.Counts {
			one := flows.Count{Bytes: 1}
			all := report.Count{Open: 1, Counted: true, Total: 1, In: one, Out: one}
			return report.Counts{id: {Count: all}}
		},
		Times:      func(visit func(lb.ID, *balancer.Times)) { visit(id, new(balancer.Times)) },
		Queue:      func() Queue { return Queue{} },
		Outliers:   func() balancer.OutlierStats { return balancer.OutlierStats{} },
		Checks:     func() checks.Stats { return checks.Stats{} },
		Events:     func() (reported, dropped uint64) { return 0, 0 },
		Conditions: func() map[string]int { return map[string]int{"": 0} },
	}
}
