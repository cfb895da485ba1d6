package lb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// builder is a Table that is not finished.
type builder struct {
	Table
	own private

	// redo are the slots of services that may get or lose an address because of others.
	redo []int32

	// touched are the hosts of the addresses that have come or gone since the table that this one is
	// made from, the unspecified one of node ports included; more than fewTouched of them are not all.
	touched []netip.Addr
}

// touch notes an address.
func (b *builder) touch(f *Frontend) {
	if host := f.Addr.Addr(); len(b.touched) <= fewTouched && !slices.Contains(b.touched, host) {
		b.touched = append(b.touched, host)
	}
}

// shared begins a table with the services of t in their slots, which are not to be written to.
func (t *Table) shared() *builder {
	return &builder{Table: Table{
		slots: slices.Clip(t.slots), places: slices.Clip(t.places), free: slices.Clip(t.free),
		records: t.records, index: t.index,
	}}
}

// sameOrder reports whether services are those of t, by their IDs, in the same order: nearly always.
func (t *Table) sameOrder(services []*Service) bool {
	if len(services) != len(t.slots) {
		return false
	}
	for i, s := range services {
		if given := t.records.at(t.slots[i]).given; given != s && given.ID != s.ID {
			return false
		}
	}
	return true
}

// update makes room in the index for what services ask for that are in their slots already. It returns the positions of
// those that are not what they were.
func (b *builder) update(services []*Service) (changed []int32) {
	for i, s := range services {
		slot := b.slots[i]
		old := b.records.at(slot)
		if old.given == s {
			continue
		}
		if old.refused != nil || !sameAddresses(old.is.Addresses, s.Addresses) {
			b.release(slot)
		}
		changed = append(changed, int32(i))
	}
	return changed
}

// arrange gives services the slots that they have in t, and notes in d which have gone. It returns the positions of
// those that are not what they were.
func (b *builder) arrange(t *Table, services []*Service, d *Delta) (changed []int32) {
	seen := make([]bool, len(t.places)) // by slot
	guess, stay, last, ordered := 0, 0, -1, true
	for i, s := range services {
		b.slots[i] = -1
		from := guess // nearly always
		if guess >= len(t.slots) || t.records.at(t.slots[guess]).given != s {
			from = t.position(guess, &s.ID)
		}
		if from >= 0 && !seen[t.slots[from]] {
			guess = from + 1
			ordered, last = ordered && from > last, from
			slot := t.slots[from]
			seen[slot] = true
			stay++
			b.slots[i], b.places[slot] = slot, int32(i)
			if old := t.records.at(slot); old.given == s {
				continue
			} else if old.refused != nil || !sameAddresses(old.is.Addresses, s.Addresses) {
				b.release(slot)
			}
		}
		changed = append(changed, int32(i))
	}
	if stay < len(t.slots) {
		for _, slot := range t.slots {
			if !seen[slot] {
				d.remove(t.at(slot))
				b.remove(slot)
			}
		}
	}
	if !ordered {
		b.contestAgain()
	}
	return changed
}

// copyFor begins a table with the index of t, for n services that are to be filled in.
func (t *Table) copyFor(n int) *builder {
	return &builder{Table: Table{
		slots: make([]int32, n), places: slices.Clone(t.places), free: slices.Clone(t.free),
		records: t.records, index: t.index,
	}}
}

// Beside returns t with the addresses of leaving, as [Table.Lost] has returned them, beside its
// own: a table for the time in which clients may still come there. A service that t does not
// have is after all others.
func (t *Table) Beside(leaving []*Service) *Table {
	b := t.copyFor(t.Len())
	b.node = t.node
	copy(b.slots, t.slots)
	var slots []int32
	for _, left := range leaving { // what is refused of it has another owner since
		s, known := left, (*Service)(nil)
		at := len(b.slots)
		if slot, ok := b.index.slot(left.ID); ok {
			at, known = int(b.places[slot]), b.at(slot)
			both := *known
			both.Addresses = slices.Concat(known.Addresses, left.Addresses)
			s = &both
			b.release(slot)
		} else {
			b.slots = append(b.slots, -1)
		}
		if b.put(at, s, nil, known) == nil {
			slots = append(slots, b.slots[at])
		}
	}
	b.markLoops(t, b.settle(t, slots))
	return &b.Table
}

// settle has all addresses be where they belong, after the services in these slots were put there. It returns
// these slots and those of others that may have changed, each once.
func (b *builder) settle(t *Table, slots []int32) []int32 {
	done := make(map[int32]bool)
	for len(b.redo) > 0 { // each of them concerns only services after it
		slot := b.redo[0]
		if b.redo = b.redo[1:]; b.places[slot] < 0 {
			continue
		}
		given := b.records.at(slot).given
		was, _ := t.Service(given.ID)
		b.release(slot)
		_ = b.put(int(b.places[slot]), given, nil, was) // it is in the table
		if !done[slot] {
			done[slot] = true
			slots = append(slots, slot)
		}
	}
	if len(done) > 0 {
		slices.Sort(slots)
		slots = slices.Compact(slots)
	}
	return slots
}

// compact takes out the positions of services that are refused whole.
func (b *builder) compact() {
	if !slices.Contains(b.slots, -1) {
		return
	}
	b.slots = slices.DeleteFunc(b.slots, func(slot int32) bool { return slot < 0 })
	for i, slot := range b.slots {
		b.places[slot] = int32(i)
	}
}

// put makes s the service at position i, without the parts it must refuse, or returns why
// the whole of it is refused. Addresses that it shares with indexed are in the index, and
// backends that it shares with known are good; both may be nil.
func (b *builder) put(i int, s, indexed, known *Service) error {
	if s.Protocol < TCP || s.Protocol > SCTP {
		return fmt.Errorf("refuse service %s: invalid protocol %d", s.ID, s.Protocol)
	}
	slot := b.slots[i]
	if slot < 0 {
		if _, ok := b.index.slot(s.ID); ok {
			return fmt.Errorf("refuse service %s %s: duplicate", s.Protocol, s.ID)
		}
		slot = b.takeSlot(s.ID, i)
	}
	var refused []error
	refuse := func(part any, err error) {
		refused = append(refused, fmt.Errorf("refuse %v of service %s %s: %w", part, s.Protocol, s.ID, err))
	}
	is := *s
	if indexed != nil && sameAddresses(indexed.Addresses, s.Addresses) {
		is.Addresses = indexed.Addresses
	} else {
		is.Addresses = filter(s.Addresses, sameAddress, func(kept []Address, a Address) (Address, error) {
			a.Addr = unmap(a.Addr)
			a.Sources = b.node.admitted(normaliseSources(a.Sources, s.IPv6), a.Addr.Addr())
			err := checkAddr(a.Addr, s.IPv6)
			switch {
			case a.Addr.Addr().Zone() != "":
				err = errors.New("has a zone")
			case a.Kind > LoadBalancerIP:
				err = fmt.Errorf("invalid kind %d", a.Kind)
			case err == nil:
				err = b.claim(Frontend{s.Protocol, a.Addr}, owner{slot, int32(len(kept)), true, a.ruled()})
			}
			if err != nil {
				refuse("address "+a.Addr.String(), err)
			}
			return a, err
		})
	}
	if known != nil && sameBackends(known.Backends, s.Backends) {
		is.Backends = known.Backends
	} else {
		is.Backends = checkBackends(s, refuse)
	}
	if s.AffinityTimeout < 0 {
		refuse("affinity", fmt.Errorf("negative timeout %d", s.AffinityTimeout))
		is.AffinityTimeout = 0
	}
	b.store(slot, s, is, known)
	b.records.at(slot).refused = refused
	return nil
}

// checkBackends returns the backends of s that are good.
func checkBackends(s *Service, refuse func(part any, err error)) []Backend {
	var seen map[netip.AddrPort]bool // in a short list looking at each is faster
	if len(s.Backends) > 32 {
		seen = make(map[netip.AddrPort]bool, len(s.Backends))
	}
	return filter(s.Backends, same, func(kept []Backend, k Backend) (Backend, error) {
		k.Addr, k.Loop = unmap(k.Addr), false
		err := checkAddr(k.Addr, s.IPv6)
		again := func(b Backend) bool { return b.Addr == k.Addr }
		switch {
		case k.Addr.Addr().IsUnspecified():
			err = errors.New("unspecified address")
		case err == nil && (seen[k.Addr] || seen == nil && slices.ContainsFunc(kept, again)):
			err = errors.New("listed twice")
		}
		if seen != nil {
			seen[k.Addr] = true
		}
		if err != nil {
			refuse("backend "+k.Addr.String(), err)
		}
		return k, err
	})
}

// store puts a service into its slot: as known if nothing differs from that, as it was
// given if nothing had to be changed. Only else it is allocated.
func (b *builder) store(slot int32, given *Service, is Service, known *Service) {
	of := record{given: given}
	switch {
	case known != nil && known.Equal(&is):
		of.is = known
	case sameSlice(is.Addresses, given.Addresses) && sameSlice(is.Backends, given.Backends) &&
		is.AffinityTimeout == given.AffinityTimeout:
		of.is = given
	default:
		changed := is
		of.is = &changed
	}
	*b.records.edit(&b.own.records, slot) = of
}

// takeSlot gives the service at position i a slot.
func (b *builder) takeSlot(id ID, i int) int32 {
	slot := int32(len(b.places))
	if n := len(b.free); n > 0 {
		slot, b.free = b.free[n-1], b.free[:n-1]
		b.places[slot] = int32(i)
	} else {
		b.places = append(b.places, int32(i))
	}
	b.slots[i] = slot
	b.idsLike(&id)[id] = slot
	return slot
}

// claim makes by the owner of f.
func (b *builder) claim(f Frontend, by owner) error {
	everywhere := f.Addr.Addr().IsUnspecified()
	first, ok := b.index.own(&f)
	if everywhere {
		first, ok = b.index.find(&f)
	}
	switch {
	case ok && first.slot == by.slot:
		return errors.New("listed twice")
	case ok && b.places[first.slot] < b.places[by.slot]:
		b.contest(f, by.slot)
		return fmt.Errorf("owned by service %s", b.at(first.slot).ID)
	case ok:
		b.redo = append(append(b.redo, first.slot), b.index.losers[f]...)
	}
	b.touch(&f)
	if everywhere {
		*b.port(&f) = by
	} else {
		b.frontends(&f)[f] = by
	}
	return nil
}

// remove takes a service out of the index.
func (b *builder) remove(slot int32) {
	b.release(slot)
	id := b.at(slot).ID
	delete(b.idsLike(&id), id)
	b.places[slot] = -1
	*b.records.edit(&b.own.records, slot) = record{}
	b.free = append(b.free, slot)
}

// release takes the addresses of a service out of the index, for others that list them.
func (b *builder) release(slot int32) {
	r := b.records.at(slot)
	for i := range r.is.Addresses {
		f := Frontend{r.is.Protocol, r.is.Addresses[i].Addr}
		everywhere := f.Addr.Addr().IsUnspecified()
		at, _ := b.index.own(&f)
		if everywhere {
			at, _ = b.index.find(&f)
		}
		if at.slot != slot || !at.owned {
			continue
		}
		b.touch(&f)
		if everywhere {
			*b.port(&f) = owner{}
		} else {
			delete(b.frontends(&f), f)
		}
		b.redo = append(b.redo, b.index.losers[f]...)
	}
	if r.refused != nil {
		for i := range r.given.Addresses {
			b.yield(Frontend{r.given.Protocol, unmap(r.given.Addresses[i].Addr)}, slot)
		}
	}
}

// contestAgain has all services that lost an address ask for it again: another order of services may be other winners.
func (b *builder) contestAgain() {
	for _, slots := range b.index.losers {
		b.redo = append(b.redo, slots...)
	}
}
