package redirect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// Plan says what becomes of those who ask at which frontend. It may hold frontends
// and prefixes of both address families; a steerer takes those of its own.
//
// A frontend with an unspecified address (0.0.0.0 or ::) is a node port: that port
// on every address of the node, loopback included. The proxy listens there itself,
// so that it can be accepted, refused or dropped, and is not steered. A frontend
// with the exact address goes before it.
//
// A frontend is steered, accepted, refused or dropped: two of them contradict
// each other. DropOutside and Restricted go with any.
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

// Equal reports whether both plans say the same in the same order.
func (p Plan) Equal(q Plan) bool {
	return p.TCPPort == q.TCPPort &&
		slices.Equal(p.TCP, q.TCP) &&
		slices.Equal(p.Ported, q.Ported) &&
		slices.Equal(p.Local, q.Local) &&
		slices.Equal(p.Accept, q.Accept) &&
		slices.Equal(p.Refuse, q.Refuse) &&
		slices.Equal(p.Drop, q.Drop) &&
		slices.Equal(p.DropOutside, q.DropOutside) &&
		slices.Equal(p.Inside, q.Inside) &&
		slices.EqualFunc(p.Restricted, q.Restricted, func(a, b Restricted) bool {
			return a.Frontend == b.Frontend && slices.Equal(a.Sources, b.Sources)
		})
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

// planner gathers the part of a plan in one address family, and notices
// contradictions within it.
type planner struct {
	ipv6 bool
	fate map[lb.Frontend]fate
}

// fate is what becomes of those who ask at a frontend.
type fate struct {
	what string
	port uint16 // if steered
}

// take returns a frontend as packets carry it, and whether it is of this family
// and has not been taken before.
func (r *planner) take(f lb.Frontend, now fate) (lb.Frontend, bool, error) {
	f, ours, err := r.frontend(f)
	if err != nil || !ours {
		return f, false, err
	}
	was, again := r.fate[f]
	switch {
	case !again:
		r.fate[f] = now
	case was.what != now.what:
		return f, false, fmt.Errorf("plan frontend %s: both %s and %s", f, was.what, now.what)
	case was.port != now.port:
		return f, false, fmt.Errorf("plan frontend %s: two proxy ports, %d and %d", f, was.port, now.port)
	}
	return f, !again, nil
}

// steer takes a frontend that is steered to a port.
func (r *planner) steer(f lb.Frontend, port uint16) (lb.Frontend, bool, error) {
	f, first, err := r.take(f, fate{"steered", port})
	switch {
	case err != nil || !first:
		return f, false, err
	case nodePort(f.Addr):
		return f, false, fmt.Errorf("plan frontend %s: a node port is listened on, not steered", f)
	case port == 0:
		return f, false, fmt.Errorf("plan frontend %s: no proxy port", f)
	}
	return f, true, nil
}

// list takes frontends that share a fate and returns them sorted.
func (r *planner) list(in []lb.Frontend, what string) ([]lb.Frontend, error) {
	var out []lb.Frontend
	for _, f := range in {
		if f, first, err := r.take(f, fate{what: what}); err != nil {
			return nil, err
		} else if first {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, compareFrontend)
	return out, nil
}

// frontend returns a frontend as packets carry it, and whether it is of this
// family.
func (r *planner) frontend(f lb.Frontend) (lb.Frontend, bool, error) {
	if f.Protocol < lb.TCP || f.Protocol > lb.SCTP || !f.Addr.IsValid() || f.Addr.Port() == 0 {
		return f, false, fmt.Errorf("plan frontend %s: no protocol, address or port", f)
	}
	f.Addr = netip.AddrPortFrom(f.Addr.Addr().Unmap(), f.Addr.Port())
	return f, f.Addr.Addr().Is6() == r.ipv6, nil
}

// family returns the part of the plan in one address family: checked, sorted,
// without duplicates, node ports last. The plan is not changed.
func (p Plan) family(ipv6 bool) (out Plan, err error) {
	r := planner{ipv6, make(map[lb.Frontend]fate, len(p.TCP)+len(p.Ported))}
	out.TCPPort = p.TCPPort
	for _, addr := range p.Local {
		if addr.Is6() == ipv6 && len(out.Local) == 0 {
			out.Local = []netip.Addr{addr}
		}
	}
	for _, addr := range p.TCP {
		if f, first, err := r.steer(lb.Frontend{Protocol: lb.TCP, Addr: addr}, p.TCPPort); err != nil {
			return Plan{}, err
		} else if first {
			out.TCP = append(out.TCP, f.Addr)
		}
	}
	for _, s := range p.Ported {
		if f, first, err := r.steer(s.Frontend, s.Port); err != nil {
			return Plan{}, err
		} else if s.Frontend.Protocol == lb.TCP {
			return Plan{}, fmt.Errorf("plan frontend %s: only UDP and SCTP have ports of their own", f)
		} else if first {
			out.Ported = append(out.Ported, Ported{f, s.Port})
		}
	}
	for _, l := range []struct {
		in   []lb.Frontend
		out  *[]lb.Frontend
		what string
	}{{p.Accept, &out.Accept, "accepted"}, {p.Refuse, &out.Refuse, "refused"}, {p.Drop, &out.Drop, "dropped"}} {
		if *l.out, err = r.list(l.in, l.what); err != nil {
			return Plan{}, err
		}
	}
	outside := planner{ipv6, make(map[lb.Frontend]fate)}
	if out.DropOutside, err = outside.list(p.DropOutside, "dropped outside"); err != nil {
		return Plan{}, err
	}
	if out.Restricted, err = r.restricted(p.Restricted); err != nil {
		return Plan{}, err
	}
	if out.Inside, err = r.prefixes(p.Inside); err != nil {
		return Plan{}, err
	}
	slices.SortFunc(out.TCP, compareAddr)
	slices.SortFunc(out.Ported, func(a, b Ported) int { return compareFrontend(a.Frontend, b.Frontend) })
	return out, nil
}

// restricted returns the frontends of this family that not everybody may ask.
func (r *planner) restricted(in []Restricted) ([]Restricted, error) {
	var out []Restricted
	seen := make(map[lb.Frontend]bool, len(in))
	for _, x := range in {
		f, ours, err := r.frontend(x.Frontend)
		switch {
		case err != nil:
			return nil, err
		case !ours:
			continue
		case nodePort(f.Addr):
			return nil, fmt.Errorf("plan frontend %s: a node port cannot be restricted to sources", f)
		case seen[f]:
			return nil, fmt.Errorf("plan frontend %s: restricted twice", f)
		}
		seen[f] = true
		sources, err := r.prefixes(x.Sources)
		if err != nil {
			return nil, fmt.Errorf("plan frontend %s: %w", f, err)
		}
		if len(sources) == 0 || sources[0].Bits() != 0 {
			out = append(out, Restricted{f, sources})
		}
	}
	slices.SortFunc(out, func(a, b Restricted) int { return compareFrontend(a.Frontend, b.Frontend) })
	return out, nil
}

// prefixes returns the prefixes of this family as packets are matched, sorted; only
// the one of length 0 if that is among them.
func (r *planner) prefixes(in []netip.Prefix) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, x := range in {
		if !x.IsValid() {
			return nil, fmt.Errorf("plan prefix %s: not valid", x)
		}
		if x.Addr().Is4In6() && x.Bits() >= 96 {
			x = netip.PrefixFrom(x.Addr().Unmap(), x.Bits()-96)
		}
		if x.Addr().Is6() != r.ipv6 {
			continue
		}
		if x.Bits() == 0 {
			return []netip.Prefix{x.Masked()}, nil
		}
		out = append(out, x.Masked())
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(out), nil
}

// nodePort reports whether the frontend is a port of every address of the node.
func nodePort(addr netip.AddrPort) bool { return addr.Addr().IsUnspecified() }

// compareAddr orders node ports last, since the first rule that matches wins.
func compareAddr(a, b netip.AddrPort) int {
	if na, nb := nodePort(a), nodePort(b); na != nb {
		if na {
			return 1
		}
		return -1
	}
	return a.Compare(b)
}

func compareFrontend(a, b lb.Frontend) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), compareAddr(a.Addr, b.Addr))
}
