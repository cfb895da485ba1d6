package agent

import "github.com/sluice-lb/sluice/lb"

// tellBegun tells of frontends that are in force and were not before. Those that got no
// proxy port are not in force, whatever the table says.
func (a *Agent) tellBegun(table *lb.Table, unopened map[lb.Frontend]bool) {
	if a.Begun == nil {
		return
	}
	was := a.begun
	if was == nil {
		was = new(lb.Table)
	}
	a.begun = table
	first, last := table.Common(was)
	if len(a.unopened) > 0 {
		first, last = 0, 0 // those that are in force by now may be anywhere
	}
	had := make(map[lb.Frontend]bool)
	eachConnected(was, first, was.Len()-last, func(f lb.Frontend) { had[f] = !a.unopened[f] })
	a.unopened = unopened
	var begun []lb.Frontend
	eachConnected(table, first, table.Len()-last, func(f lb.Frontend) {
		if !had[f] && !unopened[f] {
			begun = append(begun, f)
		}
	})
	if len(begun) > 0 {
		a.Begun(begun)
	}
}

// eachConnected calls do for the frontends of TCP and SCTP between two positions of a table.
func eachConnected(table *lb.Table, from, to int, do func(lb.Frontend)) {
	for i := from; i < to; i++ {
		s := table.At(i)
		if s.Protocol == lb.UDP {
			continue
		}
		for _, addr := range s.Addresses {
			do(lb.Frontend{Protocol: s.Protocol, Addr: addr.Addr})
		}
	}
}
