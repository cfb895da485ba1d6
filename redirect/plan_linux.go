package redirect

import (
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// exact calls f with every frontend with an exact address that the plan says
// anything of, some of them twice.
func (p Plan) exact(f func(lb.Frontend)) {
	for _, addr := range p.TCP {
		f(lb.Frontend{Protocol: lb.TCP, Addr: addr})
	}
	for _, s := range p.Ported {
		f(s.Frontend)
	}
	for _, list := range [][]lb.Frontend{p.Accept, p.Refuse, p.Drop, p.DropOutside} {
		for _, g := range list {
			if !nodePort(g.Addr) {
				f(g)
			}
		}
	}
}

// screens reports whether there is a frontend at which not everybody may ask.
func (p Plan) screens() bool { return len(p.Drop)+len(p.DropOutside)+len(p.Restricted) > 0 }

// clone returns a copy that stays when the lists of p are written to.
func (p Plan) clone() Plan {
	p.TCP, p.Ported, p.Local, p.Accept = slices.Clone(p.TCP), slices.Clone(p.Ported), slices.Clone(p.Local), slices.Clone(p.Accept)
	p.Refuse, p.Drop, p.DropOutside = slices.Clone(p.Refuse), slices.Clone(p.Drop), slices.Clone(p.DropOutside)
	p.Inside, p.Restricted = slices.Clone(p.Inside), slices.Clone(p.Restricted)
	return p
}
