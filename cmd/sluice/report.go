package main

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/events"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/kubeapi"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/metrics"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/status"
	"github.com/sluice-lb/sluice/lb"
)

// newRecorder returns who tells of events.
func (p *program) newRecorder() (events.Recorder, error) {
	if !p.cfg.FromAPI() {
		return &events.Log{Log: p.log}, nil
	}
	connection, err := kubeapi.RESTConfig(p.cfg.Source.API.Client, p.cfg.Source.API.Master)
	if err != nil {
		return nil, err
	}
	client, err := eventsv1client.NewForConfig(connection)
	if err != nil {
		return nil, fmt.Errorf("prepare to write events: %w", err)
	}
	recorder, err := events.NewAPI(client, p.cfg.Node.Name, p.log)
	if err != nil {
		return nil, fmt.Errorf("prepare to write events: %w", err)
	}
	recorder.UIDOf = p.uidOf
	return recorder, nil
}

// uidOf returns the UID of a Service, empty if it is not there.
func (p *program) uidOf(namespace, name string) types.UID {
	if services := p.services.Load(); services != nil {
		for _, svc := range *services {
			if svc.Name == name && svc.Namespace == namespace {
				return svc.UID
			}
		}
	}
	return ""
}

// observe returns what the agent tells of its attempts: each goes to record, and when
// they begin and end to fail is an event.
func (p *program) observe(record func(agent.Attempt)) func(agent.Attempt) {
	failing := false // of the agent's goroutine
	return func(a agent.Attempt) {
		record(a)
		switch {
		case p.stopping.Load(): // then it is no failure
		case a.Err != nil && !failing:
			failing = true
			p.events.Record(events.SyncFailed(a.Err))
		case a.Err == nil && failing:
			failing = false
			p.events.Record(events.Synced())
		}
	}
}

// tellConflict tells when a conflict over a node port begins and ends.
func (p *program) tellConflict(id lb.ID, f lb.Frontend, err error) {
	if err != nil {
		p.events.Record(events.PortClaimed(id, p.cfg.Node.Name, err))
		return
	}
	p.events.Record(events.PortReleased(id, f, p.cfg.Node.Name))
}

// tellUnmet tells when a Service is not on the data path that it wishes, and when that
// is over.
func (p *program) tellUnmet(id lb.ID, wish string, instead agent.Path, reason string) {
	if reason != "" {
		p.events.Record(events.PathUnmet(id, p.cfg.Node.Name, wish, instead.String(), reason))
		return
	}
	p.events.Record(events.PathMet(id, p.cfg.Node.Name, wish))
}

// tellCheck tells when a health check of a Service cannot be served, and when it is
// after all.
func (p *program) tellCheck(of status.ServiceHealth, _ netip.AddrPort, err error) {
	if err != nil {
		p.events.Record(events.CheckFailed(of.Namespace, of.Name, p.cfg.Node.Name, err))
		return
	}
	p.events.Record(events.CheckServed(of.Namespace, of.Name, p.cfg.Node.Name))
}

func (p *program) countEvents() metrics.Events {
	recorded, dropped := p.events.Stats()
	return metrics.Events{Reported: recorded, Dropped: dropped}
}

// changes tells the agent what led to a conversion.
func changes(c kube.Changes) agent.Changes {
	out := agent.Changes{Services: c.Services, Endpoints: c.Endpoints}
	for _, t := range c.Triggers {
		out.Triggers = append(out.Triggers, agent.Trigger(t))
	}
	return out
}
