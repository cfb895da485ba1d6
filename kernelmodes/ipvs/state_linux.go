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

	shape     shape
	rules     *netfilter.Ruleset
	addresses netfilter.Refs[netip.Addr] // that are this node's by our routes
	servers   map[key]server
	have      map[key]*held    // named by our sets as long as they are there
	pending   map[key]struct{} // virtual servers that the kernel may not have as they are to be

	numbers map[uint16]bool             // that Services have in marks
	marks   map[netfilter.Member]uint16 // that frontends were found to have in the kernel, until the next update
	last    uint16                      // number that was given
}

// unit is what a Service needs.
type unit struct {
	rendered
	service *lb.Service // that it was rendered from
	number  uint16      // in marks; 0 if it needs none
}

func (u *unit) of() *lb.Service { return u.service }

// newState returns a state without Services, whose rules are written by program.
func newState(program *netfilter.IPTables, s shape, lease *netfilter.Lease, c *netfilter.Counters) *state {
	l := s.layout()
	l.Counters, l.Lease = c, lease
	w := &state{
		shape: s, rules: netfilter.NewRuleset(program, l), units: make(map[lb.ID]*unit), servers: make(map[key]server),
		have: make(map[key]*held), pending: make(map[key]struct{}), numbers: make(map[uint16]bool),
	}
	for _, j := range s.jumps() {
		w.rules.AddJump(j)
	}
	return w
}

// set returns the members of a set.
func (w *state) set(name string) *netfilter.Refs[netfilter.Member] {
	return w.rules.Members(w.shape.set(name).Name)
}

// update renders the Services that have changed, or all if the host has.
func (w *state) update(h host, d *lb.Delta) {
	defer func() { w.marks = nil }()
	whole := !reflect.DeepEqual(w.host, h)
	changed := lb.Unwritten(d, h.ipv6, w.units, (*unit).of)
	if !whole && len(changed) == 0 {
		return
	}
	whole = whole || w.clashes // one Service depends on the others then
	w.host = h
	var units []*unit
	if !whole {
		units = w.replace(changed)
	}
	if whole || w.clashes {
		units = append(units, w.rebuild(changed)...)
	}
	for _, u := range units {
		// A number goes with the last virtual server that needs it.
		if _, used := w.servers[markOf(u.number)]; u.number != 0 && !used {
			delete(w.numbers, u.number)
			u.number = 0
		}
	}
}

// note notes of which Service a unit is, and returns the unit; nil: there is no such Service any more.
func (w *state) note(id lb.ID, service *lb.Service) *unit {
	u := cmp.Or(w.units[id], new(unit))
	if u.service = service; service == nil {
		delete(w.units, id)
	} else {
		w.units[id] = u
	}
	return u
}

// replace renders units anew, and returns them.
func (w *state) replace(changed []lb.Change) (units []*unit) {
	for _, c := range changed {
		u := w.note(c.ID(), c.New)
		w.take(u, true, -1)
		w.take(u, false, -1)
		if u.rendered = (rendered{}); c.New != nil {
			u.rendered = w.render(c.New)
		}
		units = append(units, u)
	}
	for _, u := range units {
		w.take(u, true, 1)
		w.take(u, false, 1)
	}
	return units
}

// rebuild applies changes and renders all units anew. It returns the units of before and of now.
func (w *state) rebuild(changed []lb.Change) []*unit {
	w.clashes = false
	w.rules.Clear()
	w.shape.render(w.rules, w.masquerade)
	w.addresses.ReleaseAll()
	for x, h := range w.have {
		w.hold(x, h, 1)
	}
	for x := range w.servers {
		w.pending[x] = struct{}{}
	}
	clear(w.servers)
	for _, p := range w.pods {
		w.addNet(setInside, p, 1)
	}
	was := slices.Collect(maps.Values(w.units))
	var units []*unit
	for _, c := range changed {
		w.note(c.ID(), c.New)
	}
	for _, id := range slices.SortedFunc(maps.Keys(w.units), compareID) {
		u := w.units[id]
		u.rendered = w.render(u.service)
		w.take(u, true, 1) // an exact address takes precedence over a node port
		units = append(units, u)
	}
	for _, u := range units {
		w.take(u, false, 1)
	}
	return append(was, units...)
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
		m := f.member()
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
			w.addServer(f.key, *f.server, n)
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
	set := setServers
	if x.mark != 0 {
		set = setNumbers
	}
	w.set(set).Add(x.member(), n)
}

// addAddress counts an address that is to be this node's.
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
	for tries := 0; n == 0 || w.numbers[n] || tries > 0 && w.set(setNumbers).Present(markOf(n).member()); tries++ {
		if tries > 1<<16 {
			return false
		}
		w.last++
		n = w.last
	}
	w.numbers[n] = true
	u.number = n
	return true
}

// markOf returns the virtual server for the mark of the Service with a number.
func markOf(number uint16) key { return key{mark: uint32(number) << numberShift} }

// hold counts what our sets name, and the address, of a virtual server that is in the kernel:
// they outlive the request for it.
func (w *state) hold(x key, h *held, n int32) {
	w.addName(x, n)
	if h.address.IsValid() {
		w.addAddress(h.address, n)
	}
}

// made notes that the kernel has a virtual server, and gone that it has it no more.
func (w *state) made(x key, h *held) {
	if ip := x.Addr.Addr(); w.addresses.Wanted(ip) || w.addresses.Present(ip) {
		h.address = ip
	}
	w.have[x] = h
	w.hold(x, h, 1)
}

func (w *state) gone(x key, h *held) {
	w.hold(x, h, -1)
	delete(w.have, x)
}

// leaves reports whether a virtual server is to be removed.
func (w *state) leaves(x key) bool {
	_, requested := w.servers[x]
	return !requested && (x.mark != 0 || !netfilter.Contains(w.exclude, x.Addr.Addr()))
}

// surplus returns the backends that a virtual server is not to have. What is not requested may
// have its own address as a backend (Engine.retire).
func (w *state) surplus(x key, h *held) (out []netip.AddrPort) {
	s, requested := w.servers[x]
	for a := range h.weights {
		_, found := slices.BinarySearchFunc(s.backends, a, weighted.compare)
		if !found && (requested || a != x.Addr) {
			out = append(out, a)
		}
	}
	return out
}

// found notes what the kernel has beside chains and sets, so that whatever may differ is
// written.
func (w *state) found(addresses []netip.Addr, servers map[key]*held) {
	w.addresses.Found(addresses)
	for x, h := range w.have {
		w.gone(x, h)
	}
	for x, h := range servers {
		w.made(x, h)
		w.pending[x] = struct{}{}
	}
	for x := range w.servers {
		w.pending[x] = struct{}{}
	}
	w.marks = make(map[netfilter.Member]uint16)
	for _, m := range inKernel(w.set(setNear)) {
		number := uint16(m.Mark >> numberShift)
		m.Mark = 0
		w.marks[m] = number
	}
}

// commit is called when the kernel has all that is requested, and of the rest only what
// waits for its last connection, or is to be kept.
func (w *state) commit() {
	w.addresses.Settle()
	for x := range w.pending {
		h := w.have[x]
		if h == nil || !w.leaves(x) && len(h.weights) <= len(w.servers[x].backends) {
			delete(w.pending, x)
		}
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
func (w *state) fresh() (hosted [][]key, others []key) {
	var udp, rest []key
	for x := range w.pending {
		s, requested := w.servers[x]
		switch {
		case !requested || w.have[x] != nil:
		case x.mark != 0 || w.addresses.Wanted(x.Addr.Addr()):
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
