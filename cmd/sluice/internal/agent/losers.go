package agent

import "github.com/sluice-lb/sluice/lb"

// losers are the service ports that list addresses which other Services own.
type losers struct {
	ports map[lb.ID]bool
	news  []lb.Loser // of which the next attempt says so
}

// noteLosers notes which service ports have lost addresses to others, and which have not any more.
func (a *Agent) noteLosers(delta *lb.Delta) {
	l := &a.losers
	over := l.ports
	if l.ports == nil || delta.Whole {
		l.ports = make(map[lb.ID]bool)
	}
	for _, loser := range delta.Losers {
		if delta.Whole {
			delete(over, loser.Service)
		}
		if l.ports[loser.Service] = true; len(loser.Taken) == 0 {
			delete(l.ports, loser.Service)
		}
		l.news = append(l.news, loser)
	}
	if delta.Whole {
		for id := range over {
			l.news = append(l.news, lb.Loser{Service: id})
		}
	}
}
