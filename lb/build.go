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

	prior     *Table                // its owners keep what they have
	disturbed map[Frontend]struct{} // that may have another owner: those who lost them are to be asked again

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
	return &builder{prior: t, Table: Table{
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
		if old.refused != nil || !sameClaims(old.is, s) {
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
	guess, stay := 0, 0
	for i, s := range services {
		b.slots[i] = -1
		from := guess // nearly always
		if guess >= len(t.slots) || t.records.at(t.slots[guess]).given != s {
			from = t.position(guess, &s.ID)
		}
		if from >= 0 && !seen[t.slots[from]] {
			guess = from + 1
			slot := t.slots[from]
			seen[slot] = true
			stay++
			b.slots[i], b.places[slot] = slot, int32(i)
			if old := t.records.at(slot); old.given == s {
				continue
			} else if old.refused != nil || !sameClaims(old.is, s) {
				b.release(slot)
			}
		}
		changed = append(changed, int32(i))
	}
	if stay < len(t.slots) {
		for _, slot := range t.slots {
			if !seen[slot] {
				d.remove(t.records.at(slot))
				b.remove(slot)
			}
		}
	}
	return changed
}

// copyFor begins a table with the index of t, for n services that are to be filled in.
func (t *Table) copyFor(n int) *builder {
	return &builder{prior: t, Table: Table{
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
	for _, left := range leaving {
		if left = t.Lost(left); left == nil {
			continue // another service has it all since
		}
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
	if indexed != nil && sameClaims(indexed, s) {
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
			case slices.Contains(b.node.elsewhere, a.Addr.Addr()):
				err = errors.New("is an address of another node")
			case b.node.answers(Frontend{s.Protocol, a.Addr}):
				err = errors.New("is where this program itself answers")
			case err == nil:
				err = b.claim(s, &a, Owner{Slot: slot, address: int32(len(kept)), owned: true, Ruled: a.ruled()}, kept)
			}
			if _, taken := err.(*takenError); taken {
				refused = append(refused, err)
			} else if err != nil {
				refuse("address "+a.Addr.String(), err)
			}
			return a, err
		})
		b.claimCheck(s, slot)
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
			refuse("endpoint "+k.Addr.String(), err)
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

// remove takes a service out of the index.
func (b *builder) remove(slot int32) {
	b.release(slot)
	id := b.at(slot).ID
	delete(b.idsLike(&id), id)
	b.places[slot] = -1
	*b.records.edit(&b.own.records, slot) = record{}
	b.free = append(b.free, slot)
}
