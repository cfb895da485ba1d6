package redirect

import (
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// screen writes the rules of the mangle table, which sees a packet before nat
// changes where it goes to: they drop those who may not ask.
//
// What comes from the node itself passes OUTPUT. It passes PREROUTING too, on
// loopback, if it is for an address of the node.
func (s shape) screen(b *script, p Plan) {
	b.rule(s.chain(chainPrerouting), "! -i lo", "other hosts and pods", s.chain(chainOutside))
	b.rule(s.chain(chainPrerouting), "", "everybody", s.chain(chainDrop))
	s.outside(b, p)
	s.drop(b, p)
}

// outside writes the rules that drop what other hosts ask.
func (s shape) outside(b *script, p Plan) {
	chain := s.chain(chainOutside)
	if s.sets {
		b.rule(chain, s.member(setInside, "src"), "pods of this node", "RETURN")
	} else {
		for _, inside := range p.Inside {
			b.rule(chain, from(inside), "pods of this node", "RETURN")
		}
	}
	const comment = "not for other hosts"
	for _, match := range s.exactly(setOutside, p.DropOutside) {
		b.rule(chain, match, comment, "DROP")
	}
	s.dropNodePorts(b, chain, p, p.DropOutside, setOutsideNode, comment)
}

// drop writes the rules that drop what nobody, or not this client, may ask. A
// client that may ask one restricted frontend is not asking another.
func (s shape) drop(b *script, p Plan) {
	chain := s.chain(chainDrop)
	for _, match := range s.exactly(setDrop, p.Drop) {
		b.rule(chain, match, "no answer", "DROP")
	}
	const comment = "not from this source"
	if s.sets {
		b.rule(chain, s.member(setRestricted, "dst,dst")+" "+s.nonMember(setAllowed, "dst,dst,src"), comment, "DROP")
	} else {
		for _, r := range p.Restricted {
			for _, source := range r.Sources {
				b.rule(chain, from(source)+" "+to(r.Frontend), "may ask", "RETURN")
			}
			b.rule(chain, to(r.Frontend), comment, "DROP")
		}
	}
	s.dropNodePorts(b, chain, p, p.Drop, setDropNode, "no answer")
}

// dropNodePorts writes the last rules of a chain, which drop what is asked of the
// node ports in a list. A frontend with the exact address goes before one.
func (s shape) dropNodePorts(b *script, chain string, p Plan, list []lb.Frontend, set, comment string) {
	for _, f := range hidden(p, list) {
		b.rule(chain, to(f), "hides a node port", "RETURN")
	}
	for _, m := range s.nodePorts(set, list) {
		b.rule(chain, m.match, comment, "DROP")
	}
}

// hidden returns the exact frontends of a plan that have the number of a node port
// of a list. Hardly any plan has one.
func hidden(p Plan, list []lb.Frontend) []lb.Frontend {
	type number struct {
		protocol lb.Protocol
		port     uint16
	}
	ports := make(map[number]bool)
	for _, f := range list {
		if nodePort(f.Addr) {
			ports[number{f.Protocol, f.Addr.Port()}] = true
		}
	}
	if len(ports) == 0 {
		return nil
	}
	var out []lb.Frontend
	seen := make(map[lb.Frontend]bool)
	p.exact(func(f lb.Frontend) {
		if ports[number{f.Protocol, f.Addr.Port()}] && !seen[f] {
			seen[f] = true
			out = append(out, f)
		}
	})
	return out
}

// nonMember matches packets that are not in a set.
func (s shape) nonMember(set, dirs string) string {
	return "-m set ! --match-set " + s.set(set) + " " + dirs
}

// from matches packets from a source.
func from(p netip.Prefix) string { return "-s " + p.String() }
