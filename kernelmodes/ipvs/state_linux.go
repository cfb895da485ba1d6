package ipvs

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// state is all that is to be in the kernel, and what is there of the things that are
// counted. What Services want is a pure function of them and the host. It is changed in
// place: of a Service that changes, what was rendered is rendered again and taken back.
type state struct {
	host
	rules []byte

	units map[lb.ID]*unit
	order []*unit // as the Services were given
	spare []*unit // memory for the next order
	round uint64  // of looking through the Services

	servers   map[key]server
	pending   map[key]struct{} // virtual servers that the kernel may not have as they are to be
	sets      sets
	addresses things[netip.Addr] // of our interface

	// What is not wanted any more, and is there as long as it has connections, is named by
	// our sets, and so is its address if it is on our interface; invalid if not.
	lingering map[key]netip.Addr

	numbers map[uint16]struct{}        // that Services have in marks
	marks   map[netfilterMember]uint16 // that frontends were found to have in the kernel, until the next update
	last    uint16                     // number that was given
	clashes bool                       // several units want one address
}

// unit is a Service as it was rendered.
type unit struct {
	service  lb.Service
	at       int    // in the order
	round    uint64 // when it was seen last
	number   uint16 // in marks; 0 if it needs none
	fallback *Fallback
}

func newState() *state {
	w := &state{
		units: make(map[lb.ID]*unit), servers: make(map[key]server), pending: make(map[key]struct{}), sets: make(sets, len(setOrder)),
		lingering: make(map[key]netip.Addr), numbers: make(map[uint16]struct{}),
	}
	for _, name := range setOrder {
		w.sets[name] = new(things[netfilterMember])
	}
	return w
}

// edit is a Service that is not as it was.
type edit struct {
	*unit
	now *lb.Service
}

// update has the state be that of services, those of the other family left out. To see
// that a Service is as it was costs a comparison of pointers, as a rule.
func (w *state) update(h host, services []lb.Service) {
	defer func() { w.marks = nil }()
	edits, gone := w.compare(h.ipv6, services)
	other := w.rules == nil || !reflect.DeepEqual(w.host, h)
	if !other && len(edits)+len(gone) == 0 {
		return
	}
	whole := other || w.clashes // one Service depends on the others then
	take := func(u *unit, n int32) {
		if !whole {
			w.render(u, true, n)
			w.render(u, false, n)
		}
	}
	for _, u := range gone {
		take(u, -1)
	}
	for _, e := range edits {
		take(e.unit, -1)
		e.service, e.fallback = *e.now, nil
	}
	for _, e := range edits {
		take(e.unit, 1)
	}
	if whole || w.clashes {
		w.renderAll(h)
		edits = edits[:0]
		for _, u := range w.order {
			edits = append(edits, edit{unit: u})
		}
	}
	for _, e := range edits {
		w.release(e.unit)
	}
	for _, u := range gone {
		w.release(u)
	}
}

// compare looks for what is to be done to the units for services, and keeps the order of
// these. Most are where they were, after the one before them.
func (w *state) compare(ipv6 bool, services []lb.Service) (edits []edit, gone []*unit) {
	w.round++
	order, next, met := slices.Grow(w.spare[:0], len(services)), 0, 0
	for i := range services {
		s := &services[i]
		if s.IPv6 != ipv6 {
			continue
		}
		var u *unit
		if next < len(w.order) && w.order[next].service.ID == s.ID {
			u = w.order[next]
		} else {
			u = w.units[s.ID]
		}
		if u != nil && u.round == w.round {
			continue // no table has an ID twice
		}
		if u == nil {
			u = new(unit)
			w.units[s.ID] = u
			edits = append(edits, edit{u, s})
		} else {
			next = u.at + 1
			met++
			if !u.service.Equal(s) {
				edits = append(edits, edit{u, s})
			}
		}
		u.at, u.round = len(order), w.round
		order = append(order, u)
	}
	if met < len(w.order) {
		for _, u := range w.order {
			if u.round != w.round {
				gone = append(gone, u)
				delete(w.units, u.service.ID)
			}
		}
	}
	clear(w.order) // what has gone is not kept alive
	w.order, w.spare = order, w.order[:0]
	return edits, gone
}

// renderAll renders all units anew.
func (w *state) renderAll(h host) {
	w.host, w.clashes = h, false
	w.rules = shape{ipv6: h.ipv6, prefix: chainPrefix}.render(h.masquerade)
	for _, set := range w.sets {
		set.forsake()
	}
	w.addresses.forsake()
	for x, ip := range w.lingering {
		w.stay(x, ip, 1)
	}
	for x := range w.servers {
		w.pending[x] = struct{}{}
	}
	clear(w.servers)
	for _, p := range h.pods {
		w.sets.wantNet(setInside, p, 1)
	}
	// An exact address goes before a node port.
	for _, exact := range []bool{true, false} {
		for _, u := range w.order {
			w.render(u, exact, 1)
		}
	}
}

// release gives back the number of a unit that does not need it any more.
func (w *state) release(u *unit) {
	if _, used := w.servers[markOf(u.number)]; u.number != 0 && !used {
		delete(w.numbers, u.number)
		u.number = 0
	}
}

// linger has what is not wanted any more stay as long as there is a virtual server for it.
func (w *state) linger(there map[key]*held) {
	for x := range w.pending {
		_, wanted := w.servers[x]
		ip, lingers := w.lingering[x]
		switch leaves := !wanted && there[x] != nil; {
		case leaves && !lingers:
			if ip = x.addr.Addr(); !w.addresses.all[ip].there {
				ip = netip.Addr{}
			}
			w.lingering[x] = ip
			w.stay(x, ip, 1)
		case !leaves && lingers:
			delete(w.lingering, x)
			w.stay(x, ip, -1)
		}
	}
}

// found has the state know what is there, so that whatever may differ is seen to.
func (w *state) found(members map[string][]netfilterMember, addresses map[netip.Addr]bool, servers map[key]*held) {
	for x, ip := range w.lingering {
		w.stay(x, ip, -1)
	}
	clear(w.lingering)
	for name, set := range w.sets {
		set.found(members[name])
	}
	w.marks = make(map[netfilterMember]uint16)
	for _, m := range members[setNear] {
		number := uint16(m.Mark >> numberShift)
		m.Mark = 0
		w.marks[m] = number
	}
	w.addresses.found(slices.Collect(maps.Keys(addresses)))
	for x := range servers {
		w.pending[x] = struct{}{}
	}
	for x := range w.servers {
		w.pending[x] = struct{}{}
	}
}

// settle is called when the kernel has all that is wanted, and of the rest only what ends
// as soon as nobody uses it, or is to be kept.
func (w *state) settle(there map[key]*held, keep func(key) bool) {
	w.addresses.settle()
	for x := range w.pending {
		s, wanted := w.servers[x]
		h := there[x]
		if !wanted && h != nil && !keep(x) || h != nil && len(h.weights) > len(s.backends) {
			continue
		}
		delete(w.pending, x)
	}
	if len(w.pending) == 0 {
		w.pending = make(map[key]struct{}) // the first Sync has made it large
	}
}

func (w *state) stay(x key, ip netip.Addr, n int32) {
	w.name(x, n)
	if ip.IsValid() {
		w.address(ip, n)
	}
}

// name has our sets say that a virtual server is ours.
func (w *state) name(x key, n int32) {
	if x.mark != 0 {
		w.sets[setNumbers].want(netfilterMember{Port: uint16(x.mark >> numberShift)}, n)
		return
	}
	w.sets[setServers].want(memberOf(lb.Frontend{Protocol: x.protocol, Addr: x.addr}), n)
}

// address has our interface have an address.
func (w *state) address(ip netip.Addr, n int32) {
	w.addresses.want(ip, n)
	w.sets.wantNet(setAddresses, netip.PrefixFrom(ip, ip.BitLen()), n)
}

// hosted reports whether a virtual server is at an address of this node, where a program
// may listen. A mark is for some clients of an address that has a server too.
func (w *state) hosted(x key) bool {
	return x.mark == 0 && w.addresses.all[x.addr.Addr()].wanted == 0
}

// near returns the UDP frontends by which clients get to virtual servers for marks, also
// those that are about to go; nothing if no such server is pending.
func (w *state) near() map[key][]netip.AddrPort {
	for x := range w.pending {
		if x.mark != 0 {
			return leadTo(maps.Keys(w.sets[setNear].all))
		}
	}
	return nil
}

// settled reports whether there is nothing to write.
func (w *state) settled() bool {
	for _, set := range w.sets {
		if len(set.touched) > 0 {
			return false
		}
	}
	return len(w.addresses.touched)+len(w.pending) == 0
}

func (w *state) fallbacks() (out []Fallback) {
	for _, u := range w.order {
		if u.fallback != nil {
			out = append(out, *u.fallback)
		}
	}
	return out
}
