package redirect

import "github.com/sluice-lb/sluice/lb"

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
