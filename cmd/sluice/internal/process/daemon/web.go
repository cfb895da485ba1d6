package daemon

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/events"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/metrics"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/status"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kubeapi"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/manifest"
	"github.com/sluice-lb/sluice/internal/netfilter/sysctl"
	"github.com/sluice-lb/sluice/sctp"
)

// web is what the program serves over HTTP.
type web struct {
	servers []*status.Server
	conns   *status.Conns  // of all of them, and of health checks of Services
	open    status.Listen  // has them among conns
	inside  *status.Inside // the page and the API; nil: there are none
	pages   api.Gate       // inside has it
	api     api.Gate       // of the API's socket, and
	listens bool           // it is served
}

// newWeb makes what serves nothing yet.
func (d *daemon) newWeb() *web {
	w := &web{conns: status.NewConns(d.data.budget.Limit), pages: api.Gate{Waits: d.waits()},
		api: api.Gate{Waits: d.waits()}}
	w.open = w.conns.Bound(d.Upgrade.Listen)
	if who := d.Config.Page; who != config.PageNever {
		w.inside = &status.Inside{Anywhere: who == config.PageAlways, Inner: &w.pages}
	}
	return w
}

func (w *web) close() error {
	var errs []error
	for _, s := range w.servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// serveWeb serves what probes and scrapers ask.
func (d *daemon) serveWeb(m *metrics.Metrics) error {
	c, open := &d.Config.Document, d.web.open
	health := status.Binding{Addr: c.HealthzBindAddress, Handler: status.HealthHandler(d.detail, m.ObserveProbe),
		Open:   open,
		Failed: d.reports.binding("/healthz", "--healthz-bind-address", events.HealthzFailed)}
	flags := make(map[string]string, len(d.Config.Settings))
	for _, s := range d.Config.Settings {
		flags[s.Name] = s.Value
	}
	info := status.Info{Mode: d.Config.DataPath.Mode, Metrics: m.Handler(),
		Config: c, Steering: d.steering.filter, Inside: d.web.inside,
		Version: d.Version, Started: d.lineage.started, Flags: flags,
		Profiling: c.EnableProfiling, SetVerbosity: d.SetVerbosity}
	scraped := status.Binding{Addr: c.MetricsBindAddress, Handler: info.Handler(), Open: open,
		Failed: d.reports.binding("/metrics", "--metrics-bind-address", events.MetricsFailed)}
	for _, b := range []struct {
		status.Binding
		flag string
	}{{health, "--healthz-bind-address"}, {scraped, "--metrics-bind-address"}} {
		if b.Addr == "" {
			continue
		}
		if c.BindAddressHardFail {
			b.Failed = nil
		}
		if strings.HasSuffix(b.Addr, ":0") {
			b.Open = func(network, addr string) (net.Listener, error) {
				l, err := open(network, addr)
				if err == nil {
					d.Log.Info("listening at a free port", zap.String("flag", b.flag),
						zap.Stringer("address", l.Addr()))
				}
				return l, err
			}
		}
		s, err := b.Serve()
		if err != nil {
			return fmt.Errorf("%s %s: %w: stop the process that uses it, or give another address", b.flag, b.Addr, err)
		}
		d.web.servers = append(d.web.servers, s)
	}
	return nil
}

// newMetrics makes the metrics, which read the packages at each scrape.
func (d *daemon) newMetrics() *metrics.Metrics {
	c := &d.Config.Metrics
	sources := metrics.Sources{Build: metrics.Build{Version: d.Version, Commit: d.Commit},
		Detail: metrics.Detail{Services: c.Services, Endpoints: c.Endpoints,
			All: c.Families == config.AllFamilies},
		TCP: d.data.tcp.Stats, UDP: d.data.udp.Stats, SCTP: d.data.sctp.Stats,
		SCTPEngine: d.data.sctp.InUse, SCTPForced: d.Config.DataPath.SCTPEngine != sctp.Auto,
		PacketFilter: d.steering.filter.By, PacketFilterForced: d.steering.filter.Requested,
		Agent: d.agentStatus, Conntrack: sysctl.Usage, Descriptors: &d.data.budget,
		RefusedHTTP: d.web.conns.Refused, AccessLog: d.data.access.Stats, LogDropped: d.LogDropped,
		LostEvents: func() uint64 { return d.watch.Stats().Lost },
		Families:   d.steering.served, Services: d.data.lb.Counters().All, Kernel: d.kernel.Counts,
		Times: d.data.lb.Counters().Times,
		Queue: d.steering.queues.stats, Outliers: d.data.lb.Health().Stats,
		Checks: d.checks.Stats, Events: d.reports.recorder.Stats,
		Conditions: d.wrong.Counts}
	switch from := d.source.(type) {
	case *manifests:
		sources.Manifests = func() manifest.Result { return *from.last.Load() }
	case *kubeapi.Watcher:
		sources.APIServer = func() metrics.Contact {
			last, trouble := from.Contact()
			return metrics.Contact{Last: last, Lost: trouble != ""}
		}
	}
	m := metrics.New(sources)
	m.Register(d.Upgrade.Collector())
	return m
}

// health answers probes.
func (d *daemon) health() status.Health {
	s, now := d.agent.Status(), time.Now()
	h := status.Health{Healthy: s.Healthy(now) && !d.reading.stuck(now, s.StaleAfter), LastUpdated: s.LastApplied,
		NodeEligible: d.control.eligible.Load(),
		Serving:      s.Applied > 0 && !d.stopping.Load()}
	for _, f := range d.steering.served {
		h.Families = append(h.Families, f.Name)
	}
	return h
}

// detail is health with what is wrong, in few words.
func (d *daemon) detail() status.Health {
	const few = 10
	h, all := d.health(), d.wrong.All()
	for _, c := range all[:min(few, len(all))] {
		h.Wrong = append(h.Wrong, c.Reason+": "+c.Text)
	}
	if more := len(all) - few; more > 0 {
		h.Wrong = append(h.Wrong, fmt.Sprintf("and %d more: sluice status lists them", more))
	}
	return h
}

// healthy reports to the load balancers of Services whether the data path is up to date.
func (d *daemon) healthy() bool {
	h := d.health()
	return h.Healthy && h.Serving
}
