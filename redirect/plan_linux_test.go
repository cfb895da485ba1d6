package redirect

import (
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// Plan is a whole update as tests write it: what becomes of packets to which frontends, of
// both families.
type Plan struct {
	// TCPPort is the proxy port that all TCP frontends are steered to. It may be
	// 0 if there are none. A port that is given is protected from direct
	// connections even then.
	TCPPort uint16
	TCP     []netip.AddrPort

	// Ported are the UDP and SCTP frontends. Frontends of one service may share
	// a port.
	Ported []Ported

	// Local are addresses of the node, none of them loopback ones, to the first of
	// which in a family SCTP clients on the node itself are steered: the kernel's SCTP
	// does not answer others at a loopback address (sctp_bind_addr_copy). Without one
	// they are steered to loopback as others are.
	Local []netip.Addr

	// Accept are frontends that the proxy listens on itself: node ports, or single
	// addresses of the node. A new flow to one passes INPUT whatever the node's
	// firewall says, as one that is steered does.
	Accept []lb.Frontend

	// Refuse are frontends of services with no endpoints: TCP clients get a
	// reset, others an ICMP port unreachable, at once. A UDP client on the node
	// itself gets EPERM from send(2) too, as from any REJECT in OUTPUT.
	Refuse []lb.Frontend

	// Drop are frontends at which no client gets an answer. A UDP client on the
	// node itself gets EPERM from send(2).
	Drop []lb.Frontend

	// DropOutside are frontends at which only clients on this node get an answer:
	// the node itself, and those whose address is in Inside.
	DropOutside []lb.Frontend

	// Inside are where the addresses of this node's pods are from.
	Inside []netip.Prefix

	// Restricted are frontends, not node ports, at which only clients from some
	// sources get an answer. A frontend is in it once at the most.
	Restricted []Restricted
}

// Ported is a frontend with a proxy port of its own.
type Ported struct {
	Frontend lb.Frontend
	Port     uint16
}

// Restricted is a frontend and who may ask there: other hosts, pods and the node
// itself alike. A source of the other address family is nobody, and so are no
// sources; one with a prefix length of 0 is everybody. A node that has the frontend's
// address on an interface asks from that address.
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
