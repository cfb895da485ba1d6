package lb

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Several services may list one address. Its owner is the one with the better kind of address, then the one that had
// it in the table before, then the older one. A name decides nothing.

// ranks orders kinds. A cluster gives a cluster IP and a node port to one Service; anyone may write an external IP.
var ranks = [...]uint8{ClusterIP: 0, NodePort: 1, LoadBalancerIP: 2, ExternalIP: 3}

// Loser is a service with addresses that other services own; none: not any more.
type Loser struct {
	Service ID
	Taken   []Taken
}

// Taken is an address of a service that another service owns, as its cluster IP for example.
type Taken struct {
	Addr  netip.AddrPort
	Kind  Kind // by which the loser lists it
	Owner ID
	As    Kind // by which the owner has it
}

// takenError refuses an address of a service.
type takenError struct {
	of ID
	Taken
}

func (e *takenError) Error() string {
	return fmt.Sprintf("refuse address %s of service %s %s: owned by service %s as %s", e.Addr, e.of.Protocol, e.of,
		e.Owner, e.As)
}

// taken returns the addresses that other services own.
func (r *record) taken() (out []Taken) {
	for _, err := range r.refused {
		if e, ok := err.(*takenError); ok {
			out = append(out, e.Taken)
		}
	}
	return out
}

// everywhere returns the port of f at all addresses of the node.
func (f Frontend) everywhere() Frontend {
	return Frontend{f.Protocol, netip.AddrPortFrom(unspecified(f.Addr.Addr()), f.Addr.Port())}
}

// check returns the port at which the node answers the health checks of s, if it does.
func (s *Service) check() (f Frontend, ok bool) {
	any := netip.IPv4Unspecified()
	if s.IPv6 {
		any = netip.IPv6Unspecified()
	}
	return Frontend{TCP, netip.AddrPortFrom(any, s.CheckPort)}, s.CheckPort != 0
}

// sameClaims reports whether a and b ask for the same addresses and ports.
func sameClaims(a, b *Service) bool {
	return a.CheckPort == b.CheckPort && sameAddresses(a.Addresses, b.Addresses)
}

// holder returns who has claimed exactly f.
func (x *index) holder(f *Frontend) (Owner, bool) {
	if !f.Addr.Addr().IsUnspecified() {
		return x.own(f)
	}
	at, _ := x.find(f)
	return at, at.owned || at.check
}

// claim makes by the owner of the address a of s, unless another service has a better claim. kept are the addresses
// of s before a.
func (b *builder) claim(s *Service, a *Address, by Owner, kept []Address) error {
	f := Frontend{s.Protocol, a.Addr}
	if first, blocked := b.blocked(&f, s, a.Kind, by.Slot); blocked {
		b.lose(&f, by.Slot)
		return b.taken(s, a, first)
	}
	if first, ok := b.index.holder(&f); ok && first.Slot == by.Slot {
		if i := int(first.address); i >= 0 && i < len(kept) && kept[i].Addr == f.Addr {
			return errors.New("listed twice")
		}
	}
	if first, won := b.bid(&f, s, a.Kind, by); !won {
		return b.taken(s, a, first)
	}
	return nil
}

// claimCheck keeps the port at which the node answers the health checks of s from other services.
func (b *builder) claimCheck(s *Service, slot int32) {
	f, ok := s.check()
	if !ok {
		return
	}
	if first, held := b.index.holder(&f); held && first.Slot == slot && first.owned {
		return // a mistake: it is the node port of s, too
	}
	b.bid(&f, s, NodePort, Owner{Slot: slot, address: -1, check: true})
}

// blocked returns which other Service has the port of f at all addresses of the node, if f is an address of the node
// and its kind is worse than a node port. The service s in the slot is asked again when that changes.
func (b *builder) blocked(f *Frontend, s *Service, kind Kind, slot int32) (Owner, bool) {
	if f.Addr.Addr().IsUnspecified() || ranks[kind] <= ranks[NodePort] || !b.node.serves(f.Addr.Addr()) {
		return Owner{}, false
	}
	port := f.everywhere()
	b.contest(port, slot)
	first, ok := b.index.holder(&port)
	return first, ok && first.Slot != slot && b.records.at(first.Slot).given.Service() != s.Service()
}

// bid makes by the owner of f, unless the service that has it has a better claim, which is returned then.
func (b *builder) bid(f *Frontend, s *Service, kind Kind, by Owner) (first Owner, won bool) {
	first, ok := b.index.holder(f)
	switch {
	case ok && first.Slot == by.Slot:
		b.set(f, by)
		return by, true
	case ok && !b.precedes(f, s, kind, by.Slot, first):
		b.contest(*f, by.Slot)
		return first, false
	case ok:
		b.contest(*f, first.Slot)
	}
	if ok || f.Addr.Addr().IsUnspecified() {
		b.disturb(*f)
	}
	b.touch(f)
	b.set(f, by)
	return by, true
}

// precedes reports whether the service s in a slot has a better claim to f, by an address of a kind, than the service
// that has it in the table so far.
func (b *builder) precedes(f *Frontend, s *Service, kind Kind, slot int32, first Owner) bool {
	other := b.records.at(first.Slot).given
	if c := cmp.Compare(ranks[kind], ranks[b.kind(first)]); c != 0 {
		return c < 0
	}
	if had := b.had(f); had != nil && (*had == s.ID || *had == other.ID) {
		return *had == s.ID
	}
	return cmp.Or(cmp.Compare(s.Created, other.Created), cmp.Compare(b.places[slot], b.places[first.Slot])) < 0
}

// kind returns the kind of the address by which an owner has it.
func (b *builder) kind(at Owner) Kind {
	if at.check {
		return NodePort
	}
	return b.at(at.Slot).Addresses[at.address].Kind
}

// had returns the service that had f in the table before; nil: none.
func (b *builder) had(f *Frontend) *ID {
	if at, ok := b.prior.index.holder(f); ok {
		return &b.prior.at(at.Slot).ID
	}
	return nil
}

// taken returns the error that refuses an address of s.
func (b *builder) taken(s *Service, a *Address, first Owner) error {
	return &takenError{s.ID, Taken{a.Addr, a.Kind, b.records.at(first.Slot).given.ID, b.kind(first)}}
}

// lose takes f from the service in a slot, if that has it.
func (b *builder) lose(f *Frontend, slot int32) {
	if at, ok := b.index.holder(f); ok && at.Slot == slot {
		b.vacate(f)
	}
}

// vacate takes f from its owner. The services that lost it are asked again.
func (b *builder) vacate(f *Frontend) {
	b.touch(f)
	b.set(f, Owner{})
	b.disturb(*f)
}

// set makes at the owner of f.
func (b *builder) set(f *Frontend, at Owner) {
	switch {
	case f.Addr.Addr().IsUnspecified():
		*b.port(f) = at
	case at == Owner{}:
		delete(b.frontends(f), *f)
	default:
		b.frontends(f)[*f] = at
	}
}

// disturb notes that f may have another owner.
func (b *builder) disturb(f Frontend) {
	if len(b.index.losers[f]) == 0 {
		return
	}
	if b.disturbed == nil {
		b.disturbed = make(map[Frontend]struct{})
	}
	b.disturbed[f] = struct{}{}
}

// release takes the addresses of a service out of the index, for others that list them.
func (b *builder) release(slot int32) {
	r := b.records.at(slot)
	for i := range r.is.Addresses {
		b.lose(&Frontend{r.is.Protocol, r.is.Addresses[i].Addr}, slot)
	}
	if f, ok := r.given.check(); ok {
		b.lose(&f, slot)
	}
	b.forget(r.given, slot)
}

// forget takes back what was noted of the addresses that a service lists.
func (b *builder) forget(s *Service, slot int32) {
	if len(b.index.losers) == 0 {
		return
	}
	for i := range s.Addresses {
		f := Frontend{s.Protocol, unmap(s.Addresses[i].Addr)}
		b.yield(f, slot)
		b.yield(f.everywhere(), slot)
	}
	if f, ok := s.check(); ok {
		b.yield(f, slot)
	}
}

// settle asks the services again that list an address which may have another owner, after the services in these slots
// were put there. It returns these slots and those of others that may have changed, each once.
func (b *builder) settle(t *Table, slots []int32) []int32 {
	asked := false
	for len(b.disturbed) > 0 {
		var again []int32
		for f := range b.disturbed {
			again = append(again, b.index.losers[f]...)
		}
		clear(b.disturbed)
		slices.Sort(again)
		again = slices.Compact(again)
		slices.SortFunc(again, func(x, y int32) int { // the best last owner comes early: few change twice
			return cmp.Or(cmp.Compare(b.records.at(x).given.Created, b.records.at(y).given.Created),
				cmp.Compare(b.places[x], b.places[y]))
		})
		for _, slot := range again {
			given := b.records.at(slot).given
			was, _ := t.Service(given.ID)
			b.forget(given, slot)
			_ = b.put(int(b.places[slot]), given, nil, was) // it is in the table
		}
		asked, slots = true, append(slots, again...)
	}
	if asked {
		slices.Sort(slots)
		slots = slices.Compact(slots)
	}
	return slots
}
