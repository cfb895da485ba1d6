package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/events"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/kubeapi"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/status"
	"github.com/sluice-lb/sluice/lb"
)

// reports turns what happens into events. Its methods may be called by any goroutine.
type reports struct {
	recorder *events.Recorder
	journal  *journal.Journal
	node     string // this node's name
	log      *zap.Logger
	stopping *atomic.Bool
	needs    chan lb.ID // Services without endpoints for which clients wait
}

// maxNeeds is how many Services may wait to be reported to need endpoints; those beyond are, 30 s later.
const maxNeeds = 256

// newReports returns reports to the API server where Services come from there, else to the
// log. uidOf returns the UID of a Service.
func newReports(c *config.Config, log *zap.Logger, j *journal.Journal, uidOf func(namespace, name string) types.UID,
	stopping *atomic.Bool) (*reports, error) {
	r := &reports{recorder: events.NewLog(j), journal: j, node: c.Node.Name, log: log, stopping: stopping,
		needs: make(chan lb.ID, maxNeeds)}
	if !c.FromAPI() {
		return r, nil
	}
	connection, err := kubeapi.RESTConfig(c.Document.ClientConnection, c.Source.Master)
	if err != nil {
		return nil, err
	}
	client, err := kubeapi.Events(connection)
	if err != nil {
		return nil, fmt.Errorf("prepare to write events: %w", err)
	}
	r.recorder = events.NewAPI(client, c.Node.Name, j, log)
	r.recorder.UIDOf = uidOf
	return r, nil
}

// observe returns the agent's Observe: each attempt goes to record, and when attempts start
// and stop to fail is an event.
func (r *reports) observe(record func(agent.Attempt)) func(agent.Attempt) {
	failing := false // of the agent's goroutine
	return func(a agent.Attempt) {
		record(a)
		r.journal.Changes(changesOf(a.Services))
		for _, c := range a.Conflicts {
			r.conflict(c)
		}
		for _, sh := range a.Shortages {
			r.shortage(sh)
		}
		for _, f := range a.Fallbacks {
			r.fallback(f)
		}
		for _, k := range a.Kept {
			r.recorder.Record(events.KeptInUserspace(k.Service, r.node, k.Why))
		}
		for _, f := range a.Policies {
			r.policy(f)
		}
		for _, l := range a.Loops {
			r.loop(l)
		}
		for _, own := range a.Own {
			r.recorder.Record(events.OwnAddress(own.Service, r.node, own.Kind, own.Addr))
		}
		switch {
		case r.stopping.Load(): // then it is no failure
		case a.Err != nil && !failing:
			failing = true
			r.recorder.Record(events.SyncFailed(a.Err))
		case a.Err == nil && failing:
			failing = false
			r.recorder.Record(events.Synced())
		}
	}
}

// conflict reports when a conflict over a node port starts and ends.
func (r *reports) conflict(c agent.Conflict) {
	if c.Err != nil {
		r.recorder.Record(events.PortClaimed(c.Service, r.node, c.Err))
		return
	}
	r.recorder.Record(events.PortReleased(c.Service, c.Frontend, r.node))
}

// shortage reports when ports of a Service are not served because file descriptors are few, and when that is over.
func (r *reports) shortage(s agent.Shortage) {
	if s.Err != nil {
		r.recorder.Record(events.PortsNotServed(s.Service, r.node, s.Err))
		return
	}
	r.recorder.Record(events.PortsServed(s.Service, r.node))
}

// fallback reports when a Service is not on the data path that it requests, and when that
// is over.
func (r *reports) fallback(f agent.Fallback) {
	if f.Reason != "" {
		r.recorder.Record(events.PathFallback(f.Service, r.node, f.Requested, f.Path.String(), f.Reason))
		return
	}
	r.recorder.Record(events.PathRestored(f.Service, r.node, f.Requested))
}

// policy reports when a Service does not have a policy that it requests, and when that is over.
func (r *reports) policy(f agent.PolicyFallback) {
	if f.Over {
		r.recorder.Record(events.PolicyRestored(f.Service, r.node, f.Policy, f.Requested))
		return
	}
	r.recorder.Record(events.PolicyFallback(f.Service, r.node, f.Policy, f.Requested, f.Instead, f.Reason))
}

// loop reports when endpoints of a Service lead back to Sluice, and when that is over.
func (r *reports) loop(l agent.Loop) {
	if len(l.Endpoints) > 0 {
		r.recorder.Record(events.EndpointsLoop(l.Service, r.node, l.Endpoints))
		return
	}
	r.recorder.Record(events.EndpointsLoopNoMore(l.Service, r.node))
}

// ejection reports that an endpoint is ejected, and that it has returned.
func (r *reports) ejection(e lb.Ejection) {
	if e.Returned {
		r.recorder.Record(events.EndpointReturned(e, r.node))
		return
	}
	r.recorder.Record(events.EndpointEjected(e, r.node))
}

// need notes that clients wait for endpoints of a Service. It does not block: a loop calls it.
func (r *reports) need(id lb.ID) {
	select {
	case r.needs <- id:
	default:
	}
}

// needPods reports what need has noted until ctx ends.
func (r *reports) needPods(ctx context.Context) {
	for {
		select {
		case id := <-r.needs:
			r.recorder.Record(events.NeedPods(id, r.node))
		case <-ctx.Done():
			return
		}
	}
}

// leftOut reports that endpoints of a Service are left out.
func (r *reports) leftOut(l kube.LeftOut) {
	r.recorder.Record(events.EndpointsLeftOut(l.Namespace, l.Name, r.node, l.String()))
}

// ignored reports that an annotation is of no use.
func (r *reports) ignored(i kube.Ignored) {
	r.log.Warn("ignoring an annotation", zap.String("namespace", i.Service.Namespace),
		zap.String("service", i.Service.Name), zap.String("annotation", i.Annotation), zap.Error(i))
	r.recorder.Record(events.AnnotationIgnored(i.Service, r.node, i.Annotation, i))
}

// check reports when a health check of a Service cannot be served, and when it is after all.
func (r *reports) check(of status.ServiceHealth, _ netip.AddrPort, err error) {
	if err != nil {
		r.recorder.Record(events.CheckFailed(of.Namespace, of.Name, r.node, err))
		return
	}
	r.recorder.Record(events.CheckServed(of.Namespace, of.Name, r.node))
}

// binding returns what reports that the address of a flag is not served, and logs that it
// is after all.
func (r *reports) binding(path, flag string, event func(error) events.Event) func(error) {
	return func(err error) {
		if err == nil {
			r.log.Info("served after all", zap.String("path", path))
			return
		}
		r.recorder.Record(event(fmt.Errorf("%s: %w: retrying; stop the process that uses it, or give another address",
			flag, err)))
	}
}
