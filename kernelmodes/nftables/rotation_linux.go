package nftables

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// rotation is the order in which backends have their turns. It does not change once made.
type rotation struct {
	number uint32 // stands for it in maps; 0: there is none
	order  []netip.AddrPort
}

// next returns the rotation for some backends, in which those that stay keep their turns as far as they
// can: where one has gone, another one that has come, or the last one, has its turn. Counting begins
// anew when their number is another one, so that the first turn is given away at random then: a backend
// would have more connections than others if it were the first after each change, and on every node.
func (r rotation) next(backends []lb.Backend, number func() uint32, random func(n int) int) rotation {
	come := make(map[netip.AddrPort]bool, len(backends))
	for i := range backends {
		come[backends[i].Addr] = true
	}
	order, gone := slices.Clone(r.order), []int(nil)
	for i, addr := range order {
		if come[addr] {
			delete(come, addr)
		} else {
			gone = append(gone, i)
		}
	}
	var added []netip.AddrPort
	for i := range backends { // in their order, which is that of lb
		if addr := backends[i].Addr; come[addr] {
			added = append(added, addr)
			delete(come, addr)
		}
	}
	n := min(len(gone), len(added))
	for i, at := range gone[:n] {
		order[at] = added[i]
	}
	order = append(order, added[n:]...)
	for _, at := range slices.Backward(gone[n:]) { // behind each of them all turns are taken
		end := len(order) - 1
		order[at], order = order[end], order[:end]
	}
	if len(order) != len(r.order) && len(order) > 1 {
		at := random(len(order))
		order[0], order[at] = order[at], order[0]
	}
	r.order = order
	if r.number == 0 && len(order) > 0 {
		r.number = number()
	}
	return r
}
