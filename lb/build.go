package lb

import (
	"errors"
	"fmt"
	"slices"
)

// builder is a Table that is not finished.
type builder struct {
	Table
	own private
}

// newBuilder begins an empty table, for about n services.
func newBuilder(n int, node Node) *builder {
	return &builder{Table: Table{node: newNode(node), slots: make([]int32, 0, n), places: make([]int32, 0, n),
		nonEmpty: make([]found, 0, n)}}
}

// copyFor begins a table with the index of t, for n services that are to be filled in.
func (t *Table) copyFor(n int, node Node) *builder {
	return &builder{Table: Table{
		node:  newNode(node),
		slots: make([]int32, n), places: slices.Clone(t.places), free: slices.Clone(t.free),
		services: slices.Clone(t.services), nonEmpty: slices.Clone(t.nonEmpty),
		index: t.index, clean: true,
	}}
}

// append adds s after all others, without the parts that must be refused. checked
// says that its backends are known to be good.
func (b *builder) append(s Service, checked bool) []error {
	var known Service
	if checked {
		known.Backends = s.Backends
	}
	i := len(b.slots)
	b.slots = append(b.slots, -1)
	refused := b.put(i, s, &known)
	if b.slots[i] < 0 { // the whole of it was
		b.slots = b.slots[:i]
	}
	return refused
}

// Beside returns t with the addresses of leaving, as Leaving has returned them, beside its
// own: a table for the time in which clients may still come there. A service that t does not
// have is after all others. What it costs depends on leaving, but for a copy of lists of
// numbers.
func (t *Table) Beside(leaving []Service) *Table {
	b := t.copyFor(t.Len(), Node{})
	b.node, b.clean = t.node, t.clean
	copy(b.slots, t.slots)
	for i := range leaving {
		s := leaving[i]
		var refused []error // has another owner since
		if slot, ok := t.index.slot(s.ID); ok {
			known := t.at(slot)
			s.Backends, s.AffinityTimeout, s.DataPath, s.Scheduler = known.Backends, known.AffinityTimeout, known.DataPath, known.Scheduler
			s.Addresses = slices.Concat(known.Addresses, s.Addresses)
			b.release(known)
			refused = b.put(int(t.places[slot]), s, known)
		} else {
			refused = b.append(s, false)
		}
		b.clean = b.clean && len(refused) == 0
	}
	return &b.Table
}

// put makes s the service at position i, without the parts it must refuse, one error
// each. The slices that it shares with known, what the table has in its slot, are good and in
// the index.
func (b *builder) put(i int, s Service, known *Service) []error {
	if s.Protocol < TCP || s.Protocol > SCTP {
		return []error{fmt.Errorf("refuse service %s: invalid protocol %d", s.ID, s.Protocol)}
	}
	slot := b.slots[i]
	if slot < 0 {
		if _, ok := b.index.slot(s.ID); ok {
			return []error{fmt.Errorf("refuse service %s %s: duplicate", s.Protocol, s.ID)}
		}
		slot = b.takeSlot(s.ID, i)
	}
	var refused []error
	refuse := func(part any, err error) {
		refused = append(refused, fmt.Errorf("refuse %v of service %s %s: %w", part, s.Protocol, s.ID, err))
	}

	if len(known.Addresses) == 0 || !sameSlice(known.Addresses, s.Addresses) {
		s.Addresses = filter(s.Addresses, sameAddress, func(kept []Address, a Address) (Address, error) {
			a.Addr, a.Sources = unmap(a.Addr), normaliseSources(a.Sources, s.IPv6)
			err := checkAddress(&a, s.IPv6)
			if err == nil {
				err = b.claim(Frontend{s.Protocol, a.Addr}, owner{slot, int32(len(kept)), true, a.ruled()})
			}
			if err != nil {
				refuse("address "+a.Addr.String(), err)
			}
			return a, err
		})
	}
	if !sameSlice(known.Backends, s.Backends) {
		repeated := newRepeats(len(s.Backends))
		s.Backends = filter(s.Backends, same, func(kept []Backend, k Backend) (Backend, error) {
			k.Addr = unmap(k.Addr)
			err := checkBackend(k.Addr, s.IPv6)
			if err == nil && repeated.has(kept, k.Addr) {
				err = errors.New("listed twice")
			}
			if err != nil {
				refuse("backend "+k.Addr.String(), err)
			}
			return k, err
		})
	}
	if s.AffinityTimeout < 0 {
		refuse("affinity", fmt.Errorf("negative timeout %d", s.AffinityTimeout))
		s.AffinityTimeout = 0
	}
	*b.own.service(&b.services, slot) = &s
	b.nonEmpty[slot] = nonEmpty(s.Backends)
	return refused
}

// takeSlot gives the service at position i a slot.
func (b *builder) takeSlot(id ID, i int) int32 {
	slot := int32(len(b.places))
	if n := len(b.free); n > 0 {
		slot, b.free = b.free[n-1], b.free[:n-1]
		b.places[slot] = int32(i)
	} else {
		b.places, b.nonEmpty = append(b.places, int32(i)), append(b.nonEmpty, 0)
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
	case ok:
		return fmt.Errorf("owned by service %s", b.at(first.slot).ID)
	case everywhere:
		*b.port(&f) = by
	default:
		b.frontends(&f).put(&f, by)
	}
	return nil
}

// remove takes a service out of the index.
func (b *builder) remove(s *Service, slot int32) {
	b.release(s)
	delete(b.idsLike(&s.ID), s.ID)
	b.places[slot] = -1
	*b.own.service(&b.services, slot) = nil
	b.free = append(b.free, slot)
}

// release takes the addresses of a service out of the index.
func (b *builder) release(s *Service) {
	for i := range s.Addresses {
		f := Frontend{s.Protocol, s.Addresses[i].Addr}
		if f.Addr.Addr().IsUnspecified() {
			*b.port(&f) = owner{}
		} else {
			b.frontends(&f).remove(&f)
		}
	}
}
