package agent

import "github.com/sluice-lb/sluice/lb"

// postpone keeps changes back that need engines which write, and those that have an address in common with them: each
// stays as it is.
func (p *planner) postpone(changes []change) {
	var waits []int
	for i := range changes {
		if !p.ready(&changes[i]) {
			changes[i].postponed = true
			waits = append(waits, i)
		}
	}
	if len(waits) == 0 {
		return
	}
	at := make(map[lb.Frontend][]int)
	for i := range changes {
		changes[i].frontends(func(f lb.Frontend) { at[f] = append(at[f], i) })
	}
	for len(waits) > 0 {
		c := &changes[waits[0]]
		waits = waits[1:]
		c.frontends(func(f lb.Frontend) {
			for _, i := range at[f] {
				if !changes[i].postponed {
					changes[i].postponed = true
					waits = append(waits, i)
				}
			}
		})
		c.now, c.lags = c.old, false
	}
}

// ready reports whether a change can be carried out now. It goes on with what its engine has of the Service if that
// has the same addresses. Clients with affinity are handed over when no engine writes.
func (p *planner) ready(c *change) bool {
	for _, path := range kernelPaths {
		e := &p.engines[family(c.id().IPv6)][path]
		if e.job == nil && !p.adopting {
			continue
		}
		to := c.now.choice.Path
		if c.moves() && c.now.service.AffinityTimeout > 0 && (path == to || path == c.old.choice.Path) {
			return false
		}
		if path != to {
			continue
		}
		has := e.serves(c.port)
		if has == nil || !has.SameAddresses(c.now.kernel) {
			return false
		}
		if !has.Equal(c.now.kernel) {
			c.now.kernel, c.lags = has, true
		}
	}
	return true
}

// frontends calls do for the frontends that a change is about, some of them more than once.
func (c *change) frontends(do func(lb.Frontend)) {
	for _, p := range []*piece{c.old, c.now} {
		for i := range p.entries {
			do(p.entries[i].Frontend)
		}
		for _, so := range p.sockets {
			do(so.frontend)
		}
		if p.kernel == nil {
			continue
		}
		for _, addr := range p.kernel.Addresses {
			do(lb.Frontend{Protocol: p.kernel.Protocol, Addr: addr.Addr})
		}
	}
}
