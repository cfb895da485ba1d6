package main

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/events"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/manifest"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/metrics"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/status"
)

// serveHTTP serves what probes and scrapers ask, and has the rooms tell of themselves.
func (p *program) serveHTTP() error {
	sources := metrics.Sources{TCP: p.tcp.Stats, UDP: p.udp.Stats, SCTP: p.sctp.Stats, SCTPEngine: p.sctp.InUse,
		Agent: p.agent.Status, Descriptors: &p.budget,
		Families: p.served, Services: p.agent.LB.Stats, Events: p.countEvents}
	if files, ok := p.source.(*manifests); ok {
		sources.Manifests = func() manifest.Result { return *files.last.Load() }
	}
	m := metrics.New(version, sources)
	for _, t := range p.steerers {
		t.ObserveFlows = m.ObserveFlows(t.IPv6)
		p.early.of(t.IPv6).observe = t.ObserveFlows
	}
	m.Register(p.next.collector())
	p.agent.Observe = p.observe(m.ObserveAttempt)
	p.agent.Conflict, p.agent.Unmet = p.tellConflict, p.tellUnmet
	health := status.Binding{Addr: p.cfg.HTTP.HealthzAddress, Handler: status.HealthHandler(p.health, m.ObserveProbe),
		Failed: p.tellBinding("/healthz", "--healthz-bind-address", events.HealthzFailed)}
	info := status.Info{Mode: p.cfg.DataPath.Mode, Metrics: m.Handler(), Config: func() any { return p.cfg.Document },
		Profiling: p.cfg.HTTP.Profiling, SetVerbosity: func(v int) { p.level.SetLevel(levelOf(v)) }}
	metrics := status.Binding{Addr: p.cfg.HTTP.MetricsAddress, Handler: info.Handler(),
		Failed: p.tellBinding("/metrics", "--metrics-bind-address", events.MetricsFailed)}
	for _, b := range []struct {
		status.Binding
		flag string
	}{{health, "--healthz-bind-address"}, {metrics, "--metrics-bind-address"}} {
		if b.Addr == "" {
			continue
		}
		if !p.cfg.HTTP.BindHardFail {
			p.http = append(p.http, b.Serve())
			continue
		}
		s, err := b.Listen()
		if err != nil {
			return fmt.Errorf("%s %s: %w: end what has it, or give another address", b.flag, b.Addr, err)
		}
		p.http = append(p.http, s)
	}
	return nil
}

// tellBinding tells that the address of a flag is not served, and logs that it is after all.
func (p *program) tellBinding(path, flag string, event func(error) events.Event) func(error) {
	return func(err error) {
		if err != nil {
			p.events.Record(event(fmt.Errorf("%s: %w: tried again until it can be had; end what has it, or give another address", flag, err)))
			return
		}
		p.log.Info("served after all", zap.String("path", path))
	}
}

// health answers probes.
func (p *program) health() status.Health {
	s := p.agent.Status()
	h := status.Health{Healthy: s.Healthy(time.Now()), LastUpdated: s.LastApplied, NodeEligible: p.eligible.Load(),
		Serving: s.Applied > 0 && !p.stopping.Load()}
	for _, f := range p.served {
		h.Families = append(h.Families, f.Name)
	}
	return h
}

// healthy reports to the load balancers of Services whether the data path is up to date.
func (p *program) healthy() bool {
	h := p.health()
	return h.Healthy && h.Serving
}
