package agent

import "github.com/sluice-lb/sluice/lb"

// noteLosers notes, for the next attempt to say so, which service ports have lost addresses to others, and which have
// not any more. It is for after the delta was noted.
func (a *Agent) noteLosers(delta *lb.Delta) {
	said := make(map[lb.ID]bool, len(delta.Losers))
	for _, loser := range delta.Losers {
		said[loser.Service] = true
		if x := a.planner.ports[loser.Service]; x != nil {
			x.said.loses = len(loser.Taken) > 0
		}
		a.losers = append(a.losers, loser)
	}
	if !delta.Whole {
		return
	}
	for id, x := range a.planner.ports {
		if x.said.loses && !said[id] {
			x.said.loses = false
			a.losers = append(a.losers, lb.Loser{Service: id})
		}
	}
}
