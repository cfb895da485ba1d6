package lb

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Backends that lead back to us. A connection to one would come to us again, and without end.

// Loops reports whether what is sent to f comes back to us: f is an address of a service, or
// one of this node with a node port of a service.
func (t *Table) Loops(f Frontend) bool {
	if _, ok := t.index.own(&f); ok {
		return true
	}
	if !t.node.serves(f.Addr.Addr()) {
		return false
	}
	_, ok := t.index.find(&f)
	return ok
}

// frontend returns what a service with the address of b would own.
func (b *Backend) frontend(p Protocol) Frontend {
	if b.Addr.Addr().Zone() == "" {
		return Frontend{p, b.Addr}
	}
	return Frontend{p, netip.AddrPortFrom(plain(b.Addr.Addr()), b.Addr.Port())}
}

// Looping returns the backends of s that lead back to us, in the order of s.Backends.
func (s *Service) Looping() (out []netip.AddrPort) {
	for i := range s.Backends {
		if s.Backends[i].Loop {
			out = append(out, s.Backends[i].Addr)
		}
	}
	return out
}

// markLoops marks the backends that lead back to us, once all addresses are claimed: of the
// services in these slots, and of all those that have backends where addresses have come or
// gone. It returns the slots and those of the latter that are others now.
func (b *builder) markLoops(known *Table, slots []int32) []int32 {
	for _, slot := range slots {
		b.mark(known, slot)
	}
	if len(b.touched) == 0 {
		return slots
	}
	for _, slot := range b.slots {
		if b.mayLeadToTouched(slot) && b.mark(known, slot) {
			slots = append(slots, slot)
		}
	}
	return slots
}

// mark marks the backends of one service, and reports whether that changes it. If it is then
// what known has, it is that.
func (b *builder) mark(known *Table, slot int32) bool {
	is := b.at(slot)
	var to traits
	marked := false
	for i := range is.Backends {
		f := is.Backends[i].frontend(is.Protocol)
		to.add(b.leads(&f))
		marked = b.Loops(f) != is.Backends[i].Loop || marked
	}
	if marked {
		s := *is
		s.Backends = slices.Clone(is.Backends)
		for i := range s.Backends {
			s.Backends[i].Loop = b.Loops(s.Backends[i].frontend(s.Protocol))
		}
		is = &s
		if was, ok := known.Service(s.ID); ok && was.Equal(is) {
			is = was
		}
	}
	if r := b.records.at(slot); marked || r.leads != to {
		*b.records.edit(&b.own.records, slot) = record{r.given, is, to, r.refused}
	}
	return marked
}

// fewTouched is at how many hosts addresses may come and go before it costs less to look at all services.
const fewTouched = 16

// mayLeadToTouched reports whether a backend of a service may be at one of the hosts where addresses have come
// or gone, or anything may have changed.
func (b *builder) mayLeadToTouched(slot int32) bool {
	if len(b.touched) > fewTouched {
		return true
	}
	leads := b.records.at(slot).leads
	return slices.ContainsFunc(b.touched, func(host netip.Addr) bool { return leads.has(traitsOf(host)) })
}

// traits are four bits of 128 for each of some hosts: a set without those of a host does not have it. Of sets of
// ten that do not have it one in 200 seems to.
type traits [2]uint64

func (t *traits) add(o traits) {
	t[0] |= o[0]
	t[1] |= o[1]
}

func (t *traits) has(o traits) bool { return t[0]&o[0] == o[0] && t[1]&o[1] == o[1] }

// traitsOf hashes an address, in which little differs from others. Ports do not count: where addresses of
// services are, there are no endpoints but by mistake.
func traitsOf(host netip.Addr) traits {
	const spread = 0x9E3779B97F4A7C15 // 2^64 by the golden ratio: Fibonacci hashing
	a := host.As16()
	h := binary.BigEndian.Uint64(a[8:]) * spread
	h = (h ^ h>>32) * spread
	return traits{1<<(h>>58) | 1<<(h>>52&63), 1<<(h>>46&63) | 1<<(h>>40&63)}
}

// leads returns the traits of what f may be owned as: as it is, and as a node port.
func (t *Table) leads(f *Frontend) traits {
	of := traitsOf(f.Addr.Addr())
	if t.node.serves(f.Addr.Addr()) {
		of.add(traitsOf(unspecified(f.Addr.Addr())))
	}
	return of
}

// unspecified returns the unspecified address of the family of a.
func unspecified(a netip.Addr) netip.Addr {
	if a.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
