package ipvs

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// state is all that is to be in the kernel, and what of it the kernel may not have yet. It
// makes no system call: what Services need is a pure function of them and the host.
type state struct {
	host
	units   map[lb.ID]*unit // as they were rendered
	clashes bool            // several units want one address

	rules     *netfilter.Ruleset
	names     map[string]string          // of sets, with their prefix
	addresses netfilter.Refs[netip.Addr] // of our interface
	servers   map[key]server
	pending   map[key]struct{} // virtual servers that the kernel may not have as they are to be

	// What is no longer requested, and stays as long as it has connections, is named by
	// our sets, and so is its address if it is on our interface; invalid if not.
	lingering map[key]netip.Addr

	numbers map[uint16]struct{}         // that Services have in marks
	marks   map[netfilter.Member]uint16 // that frontends were found to have in the kernel, until the next update
	last    uint16                      // number that was given
}

// unit is what a Service needs.
type unit struct {
	rendered
	number uint16 // in marks; 0 if it needs none
}

// newState returns a state without Services; r is of our layout, and empty.
func newState(r *netfilter.Ruleset, s shape) *state {
	w := &state{
		rules: r, units: make(map[lb.ID]*unit), servers: make(map[key]server), pending: make(map[key]struct{}),
		lingering: make(map[key]netip.Addr), numbers: make(map[uint16]struct{}), names: make(map[string]string),
	}
	for _, name := range append(slices.Clip(setOrder), setNear) {
		w.names[name] = s.set(name).Name
	}
	for _, j := range s.jumps() {
		r.AddJump(j)
	}
	return w
}

// set returns the members of a set.
func (w *state) set(name string) *netfilter.Refs[netfilter.Member] {
	return w.rules.Members(w.names[name])
}

// update renders the Services that have changed, or all if the host has.
func (w *state) update(h host, services map[lb.ID]*lb.Service, changed []lb.Change) {
	defer func() { w.marks = nil }()
	whole := !reflect.DeepEqual(w.host, h)
	if !whole && len(changed) == 0 {
		return
	}
	whole = whole || w.clashes // one Service depends on the others then
	w.host = h
	var units []*unit
	for _, c := range changed {
		id := c.ID()
		u := w.units[id]
		if u == nil {
			u = new(unit)
			w.units[id] = u
		}
		units = append(units, u)
		if !whole {
			w.take(u, true, -1)
			w.take(u, false, -1)
		}
		u.rendered = rendered{}
		if c.New == nil {
			delete(w.units, id)
		} else if !whole {
			u.rendered = h.render(c.New)
		}
	}
	for _, u := range units {
		w.take(u, true, 1)
		w.take(u, false, 1)
	}
	if whole || w.clashes {
		units = append(units, w.rebuild(services)...)
	}
	for _, u := range units {
		// A number goes with the last virtual server that needs it.
		if _, used := w.servers[markOf(u.number)]; u.number != 0 && !used {
			delete(w.numbers, u.number)
			u.number = 0
		}
	}
}

// rebuild renders all units anew, and returns them.
func (w *state) rebuild(services map[lb.ID]*lb.Service) []*unit {
	w.clashes = false
	w.rules.Clear()
	shape{ipv6: w.ipv6, prefix: chainPrefix}.render(w.rules, w.masquerade)
	w.addresses.ReleaseAll()
	for x, ip := range w.lingering {
		w.stay(x, ip, 1)
	}
	for x := range w.servers {
		w.pending[x] = struct{}{}
	}
	clear(w.servers)
	for _, p := range w.pods {
		w.addNet(setInside, p, 1)
	}
	var all []*unit
	for _, id := range slices.SortedFunc(maps.Keys(services), compareID) {
		u := w.units[id]
		u.rendered = w.render(services[id])
		w.take(u, true, 1) // an exact address takes precedence over a node port
		all = append(all, u)
	}
	for _, u := range all {
		w.take(u, false, 1)
	}
	return all
}

func compareID(a, b lb.ID) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// take counts what a unit needs at its exact addresses, or its node ports: n is 1, or -1
// to take it back.
func (w *state) take(u *unit, exact bool, n int32) {
	if exact {
		for _, m := range u.self {
			w.set(setSelf).Add(m, n)
		}
	}
	for i := range u.frontends {
		f := &u.frontends[i]
		m := memberOf(f.Frontend)
		switch {
		case f.exact != exact:
			continue
		case n > 0 && w.set(setFrontends).Wanted(m):
			w.clashes = true // the first has it
			continue
		}
		w.set(setFrontends).Add(m, n)
		if f.address {
			w.addAddress(f.Addr.Addr(), n)
		}
		for _, x := range f.members {
			w.set(x.set).Add(x.Member, n)
		}
		if f.server != nil {
			w.addServer(key{protocol: f.Protocol, addr: f.Addr}, *f.server, n)
		}
		if f.near != nil && (u.number != 0 || n > 0 && w.giveNumber(u, m)) {
			m.Mark = markOf(u.number).mark
			w.set(setNear).Add(m, n)
			w.addServer(markOf(u.number), *f.near, n)
		}
	}
}

func (w *state) addServer(x key, s server, n int32) {
	w.addName(x, n)
	w.pending[x] = struct{}{}
	if n > 0 {
		w.servers[x] = s
	} else {
		delete(w.servers, x)
	}
}

// addName counts a virtual server among those that our sets name as ours.
func (w *state) addName(x key, n int32) {
	if x.mark != 0 {
		w.set(setNumbers).Add(netfilter.Member{Port: uint16(x.mark >> numberShift)}, n)
		return
	}
	w.set(setServers).Add(memberOf(lb.Frontend{Protocol: x.protocol, Addr: x.addr}), n)
}

// addAddress counts an address of our interface.
func (w *state) addAddress(ip netip.Addr, n int32) {
	w.addresses.Add(ip, n)
	w.addNet(setAddresses, netip.PrefixFrom(ip, ip.BitLen()), n)
}

func (w *state) addNet(set string, p netip.Prefix, n int32) {
	for _, half := range netfilter.Halves(p.Masked()) {
		w.set(set).Add(netfilter.Member{Net: half}, n)
	}
}

// giveNumber gives a Service what distinguishes it in marks: the number that its
// frontend has in the kernel, from a process before, or one that no Service has, nor any
// virtual server that is there still. There are 65,535, far more than the addresses with
// policy Local that a cluster has. It reports whether there was one.
func (w *state) giveNumber(u *unit, frontend netfilter.Member) bool {
	n := w.marks[frontend]
	if _, taken := w.numbers[n]; n == 0 || taken {
		n = w.freeNumber()
	}
	if n != 0 {
		w.numbers[n] = struct{}{}
	}
	u.number = n
	return n != 0
}

// freeNumber returns a number that nothing has; 0 if there is none.
func (w *state) freeNumber() uint16 {
	for range 1 << 16 {
		w.last++
		_, taken := w.numbers[w.last]
		if w.last != 0 && !taken && !w.set(setNumbers).Present(netfilter.Member{Port: w.last}) {
			return w.last
		}
	}
	return 0
}

// markOf returns the virtual server for the mark of the Service with a number.
func markOf(number uint16) key { return key{mark: uint32(number) << numberShift} }

// linger keeps what is no longer requested as long as there is a virtual server for it.
func (w *state) linger(there map[key]*held) {
	for x := range w.pending {
		_, requested := w.servers[x]
		ip, lingers := w.lingering[x]
		switch leaves := !requested && there[x] != nil; {
		case leaves && !lingers:
			if ip = x.addr.Addr(); !w.addresses.Present(ip) {
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

func (w *state) stay(x key, ip netip.Addr, n int32) {
	w.addName(x, n)
	if ip.IsValid() {
		w.addAddress(ip, n)
	}
}

// found notes what the kernel has beside chains and sets, so that whatever may differ is
// written.
func (w *state) found(addresses map[netip.Addr]bool, servers map[key]*held) {
	for x, ip := range w.lingering {
		w.stay(x, ip, -1)
	}
	clear(w.lingering)
	w.marks = make(map[netfilter.Member]uint16)
	for _, m := range inKernel(w.set(setNear)) {
		number := uint16(m.Mark >> numberShift)
		m.Mark = 0
		w.marks[m] = number
	}
	w.addresses.Found(slices.Collect(maps.Keys(addresses)))
	for x := range servers {
		w.pending[x] = struct{}{}
	}
	for x := range w.servers {
		w.pending[x] = struct{}{}
	}
}

// commit is called when the kernel has all that is requested, and of the rest only what
// waits for its last connection, or is to be kept.
func (w *state) commit(there map[key]*held, keep func(key) bool) {
	w.addresses.Settle()
	for x := range w.pending {
		s, requested := w.servers[x]
		h := there[x]
		if !requested && h != nil && !keep(x) || h != nil && len(h.weights) > len(s.backends) {
			continue
		}
		delete(w.pending, x)
	}
	if len(w.pending) == 0 {
		w.pending = make(map[key]struct{}) // the first Sync has made it large
	}
}

// inKernel returns the members that the kernel has.
func inKernel(r *netfilter.Refs[netfilter.Member]) (out []netfilter.Member) {
	r.Each(func(m netfilter.Member, _, present bool) {
		if present {
			out = append(out, m)
		}
	})
	return out
}

// fresh returns the virtual servers that are to be made. Those of hosted are at an address of
// this node, where a program may listen, divided into groups that are made one after the other:
// first UDP. A mark is for some clients of an address that has a server too.
func (w *state) fresh(there map[key]*held) (hosted [][]key, others []key) {
	var udp, rest []key
	for x := range w.pending {
		s, requested := w.servers[x]
		switch {
		case !requested || there[x] != nil:
		case x.mark != 0 || w.addresses.Wanted(x.addr.Addr()):
			others = append(others, x)
		case s.udp:
			udp = append(udp, x)
		default:
			rest = append(rest, x)
		}
	}
	if len(udp) > 0 {
		hosted = append(hosted, udp)
	}
	const together = messagesInBatch / 2 // a server and its first backend each
	return slices.AppendSeq(hosted, slices.Chunk(rest, together)), others
}

// near returns the UDP frontends by which clients get to virtual servers for marks, also
// those that are about to go; nothing if no such server is pending.
func (w *state) near() map[key][]netip.AddrPort {
	for x := range w.pending {
		if x.mark == 0 {
			continue
		}
		var all []netfilter.Member
		w.set(setNear).Each(func(m netfilter.Member, _, _ bool) { all = append(all, m) })
		return leadTo(all)
	}
	return nil
}

func (w *state) fallbacks() (out []Fallback) {
	for _, u := range w.units {
		if u.fallback != nil {
			out = append(out, *u.fallback)
		}
	}
	slices.SortFunc(out, func(a, b Fallback) int { return compareID(a.Service, b.Service) })
	return out
}
