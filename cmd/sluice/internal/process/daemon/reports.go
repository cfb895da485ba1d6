package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/events"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/history"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/status"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kubeapi"
	"github.com/sluice-lb/sluice/lb"
)

// reports turns what happens into events. Its methods may be called by any goroutine.
type reports struct {
	recorder *events.Recorder
	wrong    *conditions.Set
	journal  *journal.Journal
	node     string // this node's name
	log      *zap.Logger
	stopping *atomic.Bool
	needs    chan lb.ID // Services without endpoints for which clients wait
	each     flowcontrol.RateLimiter
	more     atomic.Bool // conditions begin that are not reported
}

// At most so many conditions that begin at once are reported one by one, and so many a second later.
const (
	conditionBurst = 50
	conditionRate  = 1
)

// maxNeeds is how many Services may wait to be reported to need endpoints; those beyond are, 30 s later.
const maxNeeds = 256

// newReports returns reports to the API server where Services come from there, else to the
// log. uidOf returns the UID of a Service.
func newReports(c *config.Config, wrong *conditions.Set, log *zap.Logger, j *journal.Journal,
	uidOf func(namespace, name string) types.UID, stopping *atomic.Bool) (*reports, error) {
	r := &reports{recorder: events.NewLog(j), wrong: wrong, journal: j, node: c.Node.Name, log: log, stopping: stopping,
		needs: make(chan lb.ID, maxNeeds), each: flowcontrol.NewTokenBucketRateLimiter(conditionRate, conditionBurst)}
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
		for _, l := range a.Losers {
			r.loser(l)
		}
		for _, own := range a.Own {
			r.recorder.Record(events.OwnAddress(own.Service, r.node, own.Kind, own.Addr))
		}
		switch {
		case r.stopping.Load(): // then it is no failure
		case a.Err != nil && !failing:
			failing = true
			r.begins("sync", events.SyncFailed(a.Err))
		case a.Err == nil && failing:
			failing = false
			r.ends("sync", events.Synced())
		}
	}
}

// conflict reports when a conflict over a node port starts and ends.
func (r *reports) conflict(c agent.Conflict) {
	if c.Err != nil {
		r.begins("port "+c.Frontend.String(), events.PortClaimed(c.Service, r.node, c.Err))
		return
	}
	r.ends("port "+c.Frontend.String(), events.PortReleased(c.Service, c.Frontend, r.node))
}

// shortage reports when ports of a Service are not served because file descriptors are few, and when that is over.
func (r *reports) shortage(s agent.Shortage) {
	if s.Err != nil {
		r.begins(subject("sockets", s.Service), events.PortsNotServed(s.Service, r.node, s.Err))
		return
	}
	r.ends(subject("sockets", s.Service), events.PortsServed(s.Service, r.node))
}

// fallback reports when a Service is not on the data path that it requests, and when that
// is over.
func (r *reports) fallback(f agent.Fallback) {
	if f.Reason != "" {
		r.begins(subject("path", f.Service),
			events.PathFallback(f.Service, r.node, f.Requested, f.Path.String(), f.Reason))
		return
	}
	r.ends(subject("path", f.Service), events.PathRestored(f.Service, r.node, f.Requested))
}

// policy reports when a Service does not have a policy that it requests, and when that is over.
func (r *reports) policy(f agent.PolicyFallback) {
	of := subject("policy "+f.Policy, f.Service)
	if f.Over {
		r.ends(of, events.PolicyRestored(f.Service, r.node, f.Policy, f.Requested))
		return
	}
	r.begins(of, events.PolicyFallback(f.Service, r.node, f.Policy, f.Requested, f.Instead, f.Reason))
}

// loop reports when endpoints of a Service lead back to Sluice, and when that is over.
func (r *reports) loop(l agent.Loop) {
	if len(l.Endpoints) > 0 {
		r.begins(subject("loop", l.Service), events.EndpointsLoop(l.Service, r.node, l.Endpoints))
		return
	}
	r.ends(subject("loop", l.Service), events.EndpointsLoopNoMore(l.Service, r.node))
}

// loser reports when other Services own addresses of a Service, and when that is over.
func (r *reports) loser(l lb.Loser) {
	if len(l.Taken) > 0 {
		r.begins(subject("addresses", l.Service), events.AddressTaken(l, r.node))
		return
	}
	r.ends(subject("addresses", l.Service), events.AddressTakenNoMore(l.Service, r.node))
}

// subject is what is wrong of a service port: each protocol and family has its own.
func subject(what string, id lb.ID) string {
	return fmt.Sprintf("%s of %s %s %t", what, id, id.Protocol, id.IPv6)
}

// ejection reports that an endpoint is ejected, and that it has returned.
func (r *reports) ejection(e lb.Ejection) {
	if e.Returned {
		r.recorder.Record(events.EndpointReturned(e, r.node))
		return
	}
	r.recorder.Record(events.EndpointEjected(e, r.node))
}

// refusals reports that a policy or a limit has refused clients of a Service.
func (r *reports) refusals(of history.Refusals) {
	r.recorder.Record(events.ClientsRefused(of.Service, r.node, of.Why, of.Clients, of.Within))
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

// begins reports something that is a condition until ends.
func (r *reports) begins(subject string, e events.Event) {
	r.wrong.Note(subject, []conditions.Condition{{Reason: e.Reason, Namespace: e.Namespace, Service: e.Service,
		Text: e.Note}})
	r.recorder.Record(e)
}

// ends reports that it is over.
func (r *reports) ends(subject string, e events.Event) {
	r.wrong.Note(subject, nil)
	r.recorder.Record(e)
}

// began reports a condition that has begun: each, or once that there are more.
func (r *reports) began(c conditions.Condition) {
	if r.each.TryAccept() {
		r.more.Store(false)
		r.recorder.Record(events.Wrong(c, r.node))
		return
	}
	if !r.more.Swap(true) {
		r.log.Warn("too many mistakes to report each", zap.String("hint", "run sluice status for the list"))
	}
}

// put says what is wrong with a subject now, and reports what has begun.
func (r *reports) put(subject string, now []conditions.Condition) {
	for _, c := range r.wrong.Note(subject, now) {
		r.began(c)
	}
}

// check reports when a health check of a Service cannot be served, and when it is after all.
func (r *reports) check(of status.ServiceHealth, at netip.AddrPort, err error) {
	if err != nil {
		r.begins("check "+at.String(), events.CheckFailed(of.Namespace, of.Name, r.node, err))
		return
	}
	r.ends("check "+at.String(), events.CheckServed(of.Namespace, of.Name, r.node))
}

// binding returns what reports that the address of a flag is not served, and logs that it
// is after all.
func (r *reports) binding(path, flag string, event func(error) events.Event) func(error) {
	return func(err error) {
		if err == nil {
			r.wrong.Note(path, nil)
			r.log.Info("served after all", zap.String("path", path))
			return
		}
		r.begins(path, event(fmt.Errorf("%s: %w: retrying; stop the process that uses it, or give another address",
			flag, err)))
	}
}
