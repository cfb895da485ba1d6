package redirect

import (
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// equal reports whether both plans say the same in the same order.
func (p Plan) equal(q Plan) bool {
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
