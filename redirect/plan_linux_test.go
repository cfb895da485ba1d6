package redirect

import (
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// Plan is a whole update as tests write it: what becomes of packets to which frontends, of
// both families. See Entry and Host for what each means.
type Plan struct {
	TCPPort     uint16
	TCP         []netip.AddrPort
	Ported      []Ported // UDP and SCTP frontends
	Local       []netip.Addr
	Accept      []lb.Frontend
	Refuse      []lb.Frontend
	Drop        []lb.Frontend
	DropOutside []lb.Frontend
	Inside      []netip.Prefix
	Restricted  []Restricted // a frontend is in it once at the most
}

// Ported is a frontend with a proxy port of its own.
type Ported struct {
	Frontend lb.Frontend
	Port     uint16
}

// Restricted is a frontend and its sources.
type Restricted struct {
	Frontend lb.Frontend
	Sources  []netip.Prefix
}

// Update returns the plan as an update.
func (p Plan) Update() Update {
	u := Update{Host: Host{TCPPort: p.TCPPort, Local: p.Local, Inside: p.Inside}, Whole: true}
	at := make(map[lb.Frontend]int)
	entry := func(f lb.Frontend) *Entry {
		f.Addr = netip.AddrPortFrom(f.Addr.Addr().Unmap(), f.Addr.Port())
		if i, ok := at[f]; ok {
			return &u.Add[i]
		}
		at[f] = len(u.Add)
		u.Add = append(u.Add, Entry{Frontend: f})
		return &u.Add[len(u.Add)-1]
	}
	act := func(f lb.Frontend, a Action, port uint16) {
		if e := entry(f); e.Action == Pass || e.Action == a && e.Port == port {
			e.Action, e.Port = a, port
		} else {
			u.Add = append(u.Add, Entry{Frontend: f, Action: a, Port: port})
		}
	}
	for _, addr := range p.TCP {
		act(lb.Frontend{Protocol: lb.TCP, Addr: addr}, Redirect, 0)
	}
	for _, x := range p.Ported {
		act(x.Frontend, Redirect, x.Port)
	}
	for i, list := range [][]lb.Frontend{p.Accept, p.Refuse, p.Drop} {
		for _, f := range list {
			act(f, Accept+Action(i), 0)
		}
	}
	for _, f := range p.DropOutside {
		entry(f).DropOutside = true
	}
	for _, r := range p.Restricted {
		entry(r.Frontend).Sources = append([]netip.Prefix{}, r.Sources...)
	}
	return u
}
