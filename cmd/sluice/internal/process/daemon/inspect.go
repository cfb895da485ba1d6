package daemon

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/page"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/status"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kubeapi"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/sctp"
)

// inheritTimeout bounds what is asked of the process that is about to hand over.
const inheritTimeout = time.Second

// lineage is what there is to know of the processes that have handed over to each other, the last of which is this one.
type lineage struct {
	taken     bool      // there was one before, and
	known     bool      // its API was asked
	started   time.Time // this process
	serving   time.Time // the first of them
	handOvers api.HandOvers
	failed    atomic.Int64 // hand-overs that this process has given up
	samples   []api.Sample
}

// ask asks the process that everything is about to be taken over from what only it knows. One that has no API, or
// another socket, leaves us without; one that answers there and is in another network namespace is not it.
func (l *lineage) ask(ctx context.Context, socket string) {
	if socket == config.NoSocket {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, inheritTimeout)
	defer cancel()
	c := api.NewClient(socket)
	var before api.Status
	if c.Get(ctx, "status", nil, &before) != nil || before.NetNS != netNS() {
		return
	}
	l.known = true
	l.serving, l.handOvers = before.Serving, before.HandOvers
	l.handOvers.From = before.PID
	l.samples, _ = api.All[api.Sample](ctx, c, "history", url.Values{}) // without them there are ours
}

// serveAPI serves the API, on its socket and with the page on the metrics address. Without it all else is served.
func (d *daemon) serveAPI() {
	l, now := &d.lineage, time.Now()
	if l.taken {
		l.handOvers.Count++
		l.handOvers.Last = &now
		d.journal.Remember(journal.Entry{Reason: journal.TookOver})
		d.history.Seed(l.samples)
		d.history.TookOver()
	}
	if l.samples = nil; l.serving.IsZero() {
		l.serving = now
	}
	d.journal.Remember(journal.Entry{Reason: journal.Serving, Note: "version " + d.Version})
	sources := &api.Sources{LB: d.data.lb, Now: eventloop.Now, Mode: d.steering.mode, Choice: d.agent.Choice,
		Servers: []api.Server{d.data.tcp, d.data.udp, d.data.sctp, d.kernel},
		Loops:   d.Config.DataPath.Loops, Kernel: d.kernel.Counts,
		Journal: d.journal, Wrong: d.wrong.All, Nodes: d.objects.nodes, Settings: d.Config.Settings, Status: d.status,
		History: d.history}
	d.showPage(sources)
	d.web.api.Open(api.Writer{Sources: sources, Drain: d.agent.Drain}.Handler())
	d.listenAPI(l.known)
}

// listenAPI listens at the socket of the API, unless it does. takeOver: from the process that listens there.
func (d *daemon) listenAPI(takeOver bool) {
	path := d.Config.Process.APISocket
	if path == config.NoSocket || d.web.listens {
		return
	}
	d.web.listens = true
	open := d.web.conns.Bound(func(_, path string) (net.Listener, error) { return api.Listen(path, takeOver) })
	// Tried again, since the process before may still drain.
	failed := func(err error) {
		log := d.Log.With(zap.String("api_socket", path))
		switch {
		case err == nil:
			log.Info("API socket available")
		case d.Config.Process.APIRequested:
			log.Error("API socket unavailable: commands like sluice status fail", zap.Error(err))
		default:
			log.Info("API socket unavailable: commands like sluice status fail", zap.Error(err),
				zap.String("hint", "set --api-socket"))
		}
	}
	s, err := status.Binding{Network: "unix", Addr: path, Open: open, Failed: failed, Handler: &d.web.api}.Serve()
	if err == nil { // always, as it is tried again
		d.web.servers = append(d.web.servers, s)
	}
}

// waits returns what says what a process waits for that serves nothing yet.
func (d *daemon) waits() func() string {
	started := d.lineage.started
	return func() string {
		text := fmt.Sprintf("process %d serves nothing yet: it has waited for %v for ", os.Getpid(),
			time.Since(started).Round(time.Second))
		from := d.from()
		if from.APIServer == "" {
			return text + "manifests to be read: " + strings.Join(from.Manifests, ", ")
		}
		if text += "Services from the API server " + from.APIServer; from.Trouble != "" {
			text += ": " + from.Trouble
		}
		return text
	}
}

// showPage serves the page and the API on the metrics address from now on.
func (d *daemon) showPage(sources *api.Sources) {
	if d.web.inside == nil {
		return
	}
	pages, err := page.Handler(sources)
	if err != nil {
		d.Log.Error("the metrics address has no page", zap.Error(err)) // it is embedded, and tested
		return
	}
	all := http.NewServeMux()
	all.Handle("/", pages)
	all.Handle("/"+api.Version, sources.Handler())
	all.Handle("/"+api.Version+"/", sources.Handler())
	d.web.pages.Open(all)
}

// netNS names the network namespace of this process; empty: it is not known.
func netNS() string {
	name, _ := os.Readlink("/proc/self/ns/net")
	return name
}

// status is what there is to say of the process.
func (d *daemon) status() api.Status {
	a, n, l := d.agent.Status(), &d.Config.Node, &d.lineage
	sum, active := d.data.lb.Counters().Totals()
	tcp, udp, associations := d.data.tcp.Stats(), d.data.udp.Stats(), d.data.sctp.Stats()
	handOvers := l.handOvers
	handOvers.Failed += int(l.failed.Load())
	s := api.Status{Version: d.Version, Commit: d.Commit, PID: os.Getpid(), NetNS: netNS(), Node: n.Name,
		Started: l.started, Serving: l.serving, HandOvers: handOvers, Mode: d.Config.DataPath.Mode,
		Loops:  d.Config.DataPath.Loops,
		Source: d.from(), Sync: syncOf(&a),
		Services: api.ServiceCounts{Ports: a.Services, Addresses: a.Frontends, Endpoints: a.Backends,
			Paths: make(map[string]int), Fallbacks: a.Fallbacks, Conflicts: a.Conflicts, Short: a.Short,
			Ejected: d.data.lb.Health().Stats().Active, Drained: a.Drained},
		Open: api.Open{TCP: tcp.Active - tcp.Held - tcp.Queued, UDP: udp.Active,
			SCTP: associations.Active - associations.Held - associations.Queued,
			Held: tcp.Held + udp.Held + associations.Held, Queued: tcp.Queued + associations.Queued},
		Counted: api.Counted{Picks: sum.Picks, Failures: sum.Failures, Active: active, BytesIn: sum.BytesIn,
			BytesOut: sum.BytesOut},
		Descriptors: api.Descriptors{Used: d.data.budget.Used(), Limit: d.data.budget.Limit}}
	for _, path := range agent.Paths() {
		if a.Paths[path] > 0 {
			s.Services.Paths[path.String()] = a.Paths[path]
		}
	}
	for _, f := range d.steering.served {
		s.Families = append(s.Families, f.Name)
	}
	if by := d.steering.filter.By; by != "" {
		s.PacketFilter = &api.Chosen{Name: by, Requested: d.steering.filter.Requested}
	}
	if engine, _ := d.data.sctp.InUse(); engine != sctp.Auto {
		s.SCTPEngine = &api.Chosen{Name: engine.String(), Requested: d.Config.DataPath.SCTPEngine != sctp.Auto}
	}
	return s
}

// from says where Services come from.
func (d *daemon) from() api.Source {
	if m, ok := d.source.(*manifests); ok {
		r := m.last.Load()
		return api.Source{Manifests: d.Config.Source.Manifests, Files: r.Files, Rejected: r.Rejected}
	}
	w := d.source.(*kubeapi.Watcher)
	last, trouble := w.Contact()
	return api.Source{APIServer: kubeapi.Server(w.Connection), Contact: unlessZero(last), Trouble: trouble}
}

// syncOf is what there is to say of changes.
func syncOf(a *agent.Status) api.Sync {
	s := api.Sync{Healthy: a.Healthy(time.Now()), Applied: a.Applied, Failures: a.Failures,
		Last: unlessZero(a.LastApplied), Waiting: unlessZero(a.QueuedSince)}
	if a.LastError != nil {
		s.LastError = a.LastError.Error()
	}
	return s
}

func unlessZero(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
