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
	return &builder{Table: Table{node: newNode(node), services: make([]Service, 0, n), slots: make([]int32, 0, n), places: make([]int32, 0, n)}}
}

// copyFor begins a table with the index of t, for n services that are to be filled in.
func (t *Table) copyFor(n int, node Node) *builder {
	return &builder{Table: Table{
		node:     newNode(node),
		services: make([]Service, n), slots: make([]int32, n),
		places: slices.Clone(t.places), free: slices.Clone(t.free),
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
	i := len(b.services)
	b.services, b.slots = append(b.services, Service{}), append(b.slots, -1)
	refused := b.put(i, s, &known)
	if b.slots[i] < 0 { // the whole of it was
		b.services, b.slots = b.services[:i], b.slots[:i]
	}
	return refused
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
	b.services[i] = s
	return refused
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
