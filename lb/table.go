package lb

import (
	"errors"
	"net/netip"
	"slices"
)

// Table is everything that is to be balanced at one moment: an immutable set of
// services, indexed by the addresses that clients ask for. The zero Table is
// empty. All methods may be called by any number of goroutines.
type Table struct {
	node node

	// A service has a slot, the same in every table that is made by Next from one
	// that had it, so that the index need not change when others come and go.
	slots   []int32       // by position, as given to NewTable
	places  []int32       // positions by slot; free ones are -1
	free    []int32       // slots
	records pages[record] // by slot

	index index
}

// NewTable checks and indexes services, which are to be served on node. It always
// returns a usable table; the error, made by errors.Join, names each part that was
// refused:
//
//   - a service whose protocol is not TCP, UDP or SCTP, or whose ID another
//     service before it has
//   - an address or backend that is missing, multicast, of the wrong family for
//     ID.IPv6, or whose port is 0
//   - an address with an IPv6 zone or an invalid kind, of another node (Node.Elsewhere), of this program
//     (Node.Own), or listed twice
//   - an address that another service owns: the kind decides (cluster IP, node port, load-balancer IP, external IP),
//     then who has it in the table before, then age (Service.Created), then who is before the other. An address of
//     the node with the node port or the CheckPort of another service counts as that.
//   - a backend with the unspecified address, or listed twice: the first stays
//   - a negative AffinityTimeout, which then counts as none
//
// The rest of a service stays when a part of it is refused. IPv4-mapped IPv6
// addresses and prefixes become IPv4 ones.
//
// Sources of the other family are left out without an error, since one list is for
// both families of a Service; a /0 of the right family stands for everybody. What
// is left is what counts, as with kube-proxy: if nothing is, everybody may ask.
//
// The services belong to the Table from now on and must not be written to; the slice of
// them does not. Several tables may share a service.
func NewTable(services []*Service, node Node) (*Table, error) {
	t, _, err := new(Table).Next(services, node)
	return t, err
}

// Next is NewTable for services of which most are in t already, and returns how they differ from those. A service
// that t was made from, by its pointer, costs a comparison, unless one that changes has or had an address that both
// list. The error names only what is refused of services that are looked at.
func (t *Table) Next(services []*Service, node Node) (*Table, Delta, error) {
	of := newNode(node)
	if t.node.addresses == nil || !t.node.equal(&of) {
		return t.Anew(services, node)
	}
	b, same := t.shared(), t.sameOrder(services)
	if !same {
		b = t.copyFor(len(services))
	}
	b.node = of
	var d Delta
	var changed []int32 // positions in services
	if same {
		changed = b.update(services)
	} else {
		changed = b.arrange(t, services, &d)
	}
	refused := b.fill(t, services, changed, &d)
	return &b.Table, d, refused
}

// Anew is Next as if nothing were in t already, but who owns an address in t keeps it.
func (t *Table) Anew(services []*Service, node Node) (*Table, Delta, error) {
	b := new(Table).copyFor(len(services))
	b.prior, b.node = t, newNode(node)
	changed := make([]int32, len(services))
	for i := range services {
		b.slots[i], changed[i] = -1, int32(i)
	}
	d := Delta{Whole: true}
	refused := b.fill(t, services, changed, &d)
	return &b.Table, d, refused
}

// fill puts the services at these positions into the table, which differ from those of t, and completes d. The error
// is what it refuses of them.
func (b *builder) fill(t *Table, services []*Service, changed []int32, d *Delta) error {
	var slots []int32
	var refused []refusal
	for _, i := range changed { // now that what they may claim is free
		was, _ := t.Service(services[i].ID)
		var indexed *Service
		if slot := b.slots[i]; slot >= 0 && t.records.at(slot).refused == nil {
			indexed = was
		}
		if err := b.put(int(i), services[i], indexed, was); err != nil {
			refused = append(refused, refusal{i, []error{err}})
		} else {
			slots = append(slots, b.slots[i])
		}
	}
	slots = b.settle(t, slots)
	for _, slot := range slots {
		r := b.records.at(slot)
		if r.refused != nil {
			refused = append(refused, refusal{b.places[slot], r.refused})
		}
		d.lost(t, r)
	}
	b.compact()
	if d.Whole {
		slots = b.slots
	}
	for _, slot := range b.markLoops(t, slots) {
		is := b.at(slot)
		was, _ := t.Service(is.ID)
		d.note(was, is)
	}
	return join(refused)
}

// refusal is what is refused of the service at a position.
type refusal struct {
	at   int32
	errs []error
}

// join returns the errors in the order of the services.
func join(refused []refusal) error {
	slices.SortFunc(refused, func(a, b refusal) int { return int(a.at - b.at) })
	var all []error
	for _, r := range refused {
		all = append(all, r.errs...)
	}
	return errors.Join(all...)
}

// position returns where the service with this ID is, or -1. It looks at guess first.
func (t *Table) position(guess int, id *ID) int {
	if guess < len(t.slots) && t.At(guess).ID == *id {
		return guess
	}
	if slot, ok := t.index.slot(*id); ok {
		return int(t.places[slot])
	}
	return -1
}

// sameSlice reports whether a and b are the same memory.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Len returns the number of services.
func (t *Table) Len() int { return len(t.slots) }

// At returns a service by its position in the order given to NewTable, below Len. The
// caller must not change it. A table made by Next has the same pointer for a service
// that has stayed the same.
func (t *Table) At(i int) *Service { return t.at(t.slots[i]) }

// Services returns all services, in the order given to NewTable, in a slice of the
// caller's. They are the table's and must not be changed.
func (t *Table) Services() []*Service {
	all := make([]*Service, t.Len())
	for i := range all {
		all[i] = t.At(i)
	}
	return all
}

// Service returns the service with this ID. The caller must not change it.
func (t *Table) Service(id ID) (*Service, bool) {
	slot, ok := t.index.slot(id)
	if !ok {
		return nil, false
	}
	return t.at(slot), true
}

// Lost returns a service of an earlier table with those of its addresses that no service of
// t has, or nil if there are none.
func (t *Table) Lost(s *Service) *Service {
	var gone []Address
	for _, a := range s.Addresses {
		if _, owned, ok := t.Lookup(Frontend{s.Protocol, a.Addr}); !ok || owned.Addr != a.Addr {
			gone = append(gone, a)
		}
	}
	switch len(gone) {
	case 0:
		return nil
	case len(s.Addresses):
		return s
	}
	left := *s
	left.Addresses = gone
	return &left
}

// Lookup returns the service that owns f, and the address by which it does: the one
// that is exactly f, or else the unspecified one with the port of f. The caller must
// not change them.
func (t *Table) Lookup(f Frontend) (*Service, *Address, bool) {
	at, ok := t.index.find(&f)
	if !ok {
		return nil, nil, false
	}
	s := t.at(at.Slot)
	return s, &s.Addresses[at.address], true
}

// Owner returns the ID of the service that owns f, which the caller must not change; nil: none does.
func (t *Table) Owner(f Frontend) *ID {
	if s, _, ok := t.Lookup(f); ok {
		return &s.ID
	}
	return nil
}

// at returns the service of a slot.
func (t *Table) at(slot int32) *Service { return t.records.at(slot).is }

func checkAddr(a netip.AddrPort, ipv6 bool) error {
	switch {
	case !a.Addr().IsValid():
		return errors.New("no address")
	case a.Addr().IsMulticast():
		return errors.New("multicast address")
	case a.Addr().Is6() != ipv6:
		return errors.New("address of the other family")
	case a.Port() == 0:
		return errors.New("port 0")
	}
	return nil
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

var errOtherFamily = errors.New("prefix of the other family")

// normaliseSources returns what counts of the sources of an address. An invalid
// prefix stays, and contains no client: it must not open the address to all.
func normaliseSources(sources []netip.Prefix, ipv6 bool) []netip.Prefix {
	if len(sources) == 0 {
		return sources
	}
	sources = filter(sources, same, func(_ []netip.Prefix, p netip.Prefix) (netip.Prefix, error) {
		p = unmapPrefix(p)
		if p.IsValid() && p.Addr().Is6() != ipv6 {
			return p, errOtherFamily
		}
		return p, nil
	})
	if slices.ContainsFunc(sources, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return nil
	}
	return sources
}

// filter returns the elements of list that accept returns without an error, as
// accept returns them; accept is also given those kept before. It never writes
// to list, and returns list itself if all stay the same, which is nearly always.
func filter[T any](list []T, same func(a, b T) bool, accept func(kept []T, v T) (T, error)) []T {
	kept, shared := list[:0], true
	for i, v := range list {
		accepted, err := accept(kept, v)
		if shared && err == nil && same(accepted, v) {
			kept = list[:i+1]
			continue
		}
		if shared {
			kept, shared = slices.Clone(kept), false
		}
		if err == nil {
			kept = append(kept, accepted)
		}
	}
	return kept
}

func same[T comparable](a, b T) bool { return a == b }

// sameAddress expects the sources of one of the two to be derived from the other's.
func sameAddress(a, b Address) bool {
	return a.Addr == b.Addr && a.Kind == b.Kind && a.Local == b.Local &&
		len(a.Sources) == len(b.Sources) && (len(a.Sources) == 0 || &a.Sources[0] == &b.Sources[0])
}
