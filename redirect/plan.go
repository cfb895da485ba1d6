package redirect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// Plan says what is to be steered where. It may hold frontends of both address
// families; a steerer takes those of its own. A frontend with an unspecified
// address (0.0.0.0 or ::) is a node port: that port on every address of the node,
// loopback included; a frontend with the exact address goes before it.
type Plan struct {
	// TCPPort is the proxy port that all TCP frontends are steered to. It may be
	// 0 if there are none. A port that is given is protected from direct
	// connections even then.
	TCPPort uint16
	TCP     []netip.AddrPort

	// Ported are the UDP and SCTP frontends. Frontends of one service may share
	// a port.
	Ported []Ported

	// Refuse are frontends of services with no endpoints: TCP clients get a
	// reset, others an ICMP port unreachable, at once. A UDP client on the node
	// itself gets EPERM from send(2) too, as from any REJECT in OUTPUT.
	Refuse []lb.Frontend
}

// Ported is a frontend with a proxy port of its own.
type Ported struct {
	Frontend lb.Frontend
	Port     uint16
}

// family returns the part of the plan in one address family: checked, sorted,
// without duplicates, node ports last. The plan is not changed.
func (p Plan) family(ipv6 bool) (Plan, error) {
	out := Plan{TCPPort: p.TCPPort}
	steered := make(map[lb.Frontend]uint16, len(p.TCP)+len(p.Ported))
	take := func(f lb.Frontend, port uint16) (bool, error) {
		if !f.Addr.IsValid() || f.Addr.Port() == 0 {
			return false, fmt.Errorf("plan frontend %s: no address or no port", f)
		}
		if f.Addr.Addr().Is6() != ipv6 {
			return false, nil
		}
		if port == 0 {
			return false, fmt.Errorf("plan frontend %s: no proxy port", f)
		}
		if was, ok := steered[f]; ok && was != port {
			return false, fmt.Errorf("plan frontend %s: two proxy ports, %d and %d", f, was, port)
		} else if ok {
			return false, nil
		}
		steered[f] = port
		return true, nil
	}
	for _, addr := range p.TCP {
		f := unmap(lb.Frontend{Protocol: lb.TCP, Addr: addr})
		if ok, err := take(f, p.TCPPort); err != nil {
			return Plan{}, err
		} else if ok {
			out.TCP = append(out.TCP, f.Addr)
		}
	}
	for _, s := range p.Ported {
		f := unmap(s.Frontend)
		if f.Protocol != lb.UDP && f.Protocol != lb.SCTP {
			return Plan{}, fmt.Errorf("plan frontend %s: only UDP and SCTP have ports of their own", f)
		}
		if ok, err := take(f, s.Port); err != nil {
			return Plan{}, err
		} else if ok {
			out.Ported = append(out.Ported, Ported{f, s.Port})
		}
	}
	for _, f := range p.Refuse {
		f = unmap(f)
		switch {
		case f.Protocol < lb.TCP || f.Protocol > lb.SCTP || !f.Addr.IsValid() || f.Addr.Port() == 0:
			return Plan{}, fmt.Errorf("plan to refuse %s: no protocol, address or port", f)
		case steered[f] != 0:
			return Plan{}, fmt.Errorf("plan frontend %s: both steered and refused", f)
		case f.Addr.Addr().Is6() == ipv6:
			out.Refuse = append(out.Refuse, f)
		}
	}
	slices.SortFunc(out.TCP, compareAddr)
	slices.SortFunc(out.Ported, func(a, b Ported) int { return compareFrontend(a.Frontend, b.Frontend) })
	slices.SortFunc(out.Refuse, compareFrontend)
	out.Refuse = slices.Compact(out.Refuse)
	return out, nil
}

// unmap turns an IPv4-mapped IPv6 address into the IPv4 address that packets
// carry.
func unmap(f lb.Frontend) lb.Frontend {
	f.Addr = netip.AddrPortFrom(f.Addr.Addr().Unmap(), f.Addr.Port())
	return f
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
