package daemon

import (
	"fmt"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
)

// changesOf is what the agent has applied, in the journal's form.
func changesOf(services []agent.ServiceChange) []journal.Change {
	out := make([]journal.Change, len(services))
	for i := range services {
		out[i] = changeOf(&services[i])
	}
	return out
}

func changeOf(s *agent.ServiceChange) journal.Change {
	c := journal.Change{Namespace: s.Service.Namespace, Service: s.Service.Name}
	add := func(key string, value any) { c.Details = append(c.Details, journal.Detail{Key: key, Value: value}) }
	switch {
	case s.Added:
		c.Reason, c.Message = journal.ServiceAdded, "service added"
		add("ports", s.Ports)
	case s.Removed:
		c.Reason, c.Message = journal.ServiceRemoved, "service removed"
		add("ports", s.Ports)
		return c
	case s.LostEndpoints:
		c.Reason, c.Message, c.Warning = journal.NoEndpoints, "service has no endpoint any more", true
	case s.PortsChanged || s.Addresses || s.Policies:
		c.Reason, c.Message = journal.ServiceChanged, "service changed"
	default:
		c.Reason, c.Message = journal.EndpointsChanged, "endpoints changed"
	}
	if !s.Added {
		if s.PortsChanged {
			add("ports", s.Ports)
		}
		if s.Addresses {
			add("addresses", "changed")
		}
		if s.Policies {
			add("policies", "changed")
		}
		if s.Joined+s.Left > 0 {
			add("change", fmt.Sprintf("+%d -%d", s.Joined, s.Left))
		}
	}
	add("endpoints", s.Endpoints)
	add("ready", s.Ready)
	return c
}
