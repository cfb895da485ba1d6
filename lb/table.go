package lb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Table is everything that is to be balanced at one moment: an immutable set of
// services, indexed by the addresses that clients ask for. The zero Table is
// empty. All methods may be called by any number of goroutines.
type Table struct {
	services []Service

	// The values are positions in services.

	frontends map[Frontend]int32
	nodePorts map[nodePort]int32 // the frontends with the unspecified address
	ids       map[ID]int32
}

// nodePort is a frontend with the unspecified address, as a key of four bytes.
type nodePort struct {
	port     uint16
	protocol Protocol
	ipv6     bool
}

// NewTable checks and indexes services. It always returns a usable table; the
// error, made by errors.Join, names each part that was refused:
//
//   - a service whose protocol is not TCP, UDP or SCTP, or whose ID another
//     service before it has
//   - a frontend or backend whose address is missing, multicast, of the wrong
//     family for ID.IPv6, or whose port is 0
//   - a frontend with an IPv6 zone, or owned by a service before this one
//   - a backend with the unspecified address, or listed twice: the first stays
//   - a negative AffinityTimeout, which then counts as none
//
// The rest of a service stays when a part of it is refused. IPv4-mapped IPv6
// addresses become IPv4 addresses.
//
// A frontend with the unspecified address, 0.0.0.0 or ::, is a node port: it
// owns its port on every address of its family that has no exact owner.
//
// The slices inside the services belong to the Table from now on. They are not
// written to, so several tables may share them, and [Balancer.Update] recognises
// shared ones at no cost.
func NewTable(services []Service) (*Table, error) {
	t := &Table{
		services:  make([]Service, 0, len(services)),
		frontends: make(map[Frontend]int32, len(services)),
		nodePorts: make(map[nodePort]int32),
		ids:       make(map[ID]int32, len(services)),
	}
	var refused []error
	for i := range services {
		refused = append(refused, t.add(services[i])...)
	}
	return t, errors.Join(refused...)
}

// Len returns the number of services.
func (t *Table) Len() int { return len(t.services) }

// Services returns all services in the order given to NewTable. The caller must
// not change them.
func (t *Table) Services() []Service { return t.services }

// Service returns the service with this ID. The caller must not change it.
func (t *Table) Service(id ID) (*Service, bool) {
	i, ok := t.ids[id]
	if !ok {
		return nil, false
	}
	return &t.services[i], true
}

// Lookup returns the service that owns f: the one with exactly this address, or
// else the one with this node port. The caller must not change it.
func (t *Table) Lookup(f Frontend) (*Service, bool) {
	i, ok := t.find(&f)
	if !ok {
		return nil, false
	}
	return &t.services[i], true
}

// find is Lookup by position in services. It reads f where it lies: what has just
// been copied through registers, in words, is slow to read back in the wider
// units that hashing uses (15 ns, half of a Pick).
func (t *Table) find(f *Frontend) (int32, bool) {
	if i, ok := t.frontends[*f]; ok {
		return i, true
	}
	addr := f.Addr.Addr()
	if addr.Is4In6() {
		return t.find(&Frontend{f.Protocol, unmap(f.Addr)})
	}
	i, ok := t.nodePorts[nodePort{f.Addr.Port(), f.Protocol, addr.Is6()}]
	return i, ok && addr.IsValid()
}

// add appends s without the parts it must refuse, one error each.
func (t *Table) add(s Service) []error {
	if s.Protocol < TCP || s.Protocol > SCTP {
		return []error{fmt.Errorf("refuse service %s: invalid protocol %d", s.ID, s.Protocol)}
	}
	if _, ok := t.ids[s.ID]; ok {
		return []error{fmt.Errorf("refuse service %s %s: duplicate", s.Protocol, s.ID)}
	}
	position := int32(len(t.services))
	var refused []error
	refuse := func(part any, err error) {
		refused = append(refused, fmt.Errorf("refuse %v of service %s %s: %w", part, s.Protocol, s.ID, err))
	}

	s.Frontends = filter(s.Frontends, func(_ []netip.AddrPort, a netip.AddrPort) (netip.AddrPort, error) {
		a = unmap(a)
		err := checkFrontend(a, s.IPv6)
		if err == nil {
			err = t.claim(Frontend{s.Protocol, a}, position)
		}
		if err != nil {
			refuse("frontend "+a.String(), err)
		}
		return a, err
	})
	repeated := newRepeats(len(s.Backends))
	s.Backends = filter(s.Backends, func(kept []Backend, b Backend) (Backend, error) {
		b.Addr = unmap(b.Addr)
		err := checkBackend(b.Addr, s.IPv6)
		if err == nil && repeated.has(kept, b.Addr) {
			err = errors.New("listed twice")
		}
		if err != nil {
			refuse("backend "+b.Addr.String(), err)
		}
		return b, err
	})
	if s.AffinityTimeout < 0 {
		refuse("affinity", fmt.Errorf("negative timeout %d", s.AffinityTimeout))
		s.AffinityTimeout = 0
	}
	t.ids[s.ID] = position
	t.services = append(t.services, s)
	return refused
}

// claim makes the service at position the owner of f.
func (t *Table) claim(f Frontend, position int32) error {
	owner, ok := t.frontends[f]
	switch {
	case ok && owner == position:
		return errors.New("listed twice")
	case ok:
		return fmt.Errorf("owned by service %s", t.services[owner].ID)
	}
	t.frontends[f] = position
	if f.Addr.Addr().IsUnspecified() {
		t.nodePorts[nodePort{f.Addr.Port(), f.Protocol, f.Addr.Addr().Is6()}] = position
	}
	return nil
}

func checkFrontend(a netip.AddrPort, ipv6 bool) error {
	if a.Addr().Zone() != "" {
		return errors.New("has a zone")
	}
	return checkAddr(a, ipv6)
}

func checkBackend(a netip.AddrPort, ipv6 bool) error {
	if a.Addr().IsUnspecified() {
		return errors.New("unspecified address")
	}
	return checkAddr(a, ipv6)
}

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

// filter returns the elements of list that accept returns without an error, as
// accept returns them; accept is also given those kept before. It never writes
// to list, and returns list itself if nothing changes, which is nearly always.
func filter[T comparable](list []T, accept func(kept []T, v T) (T, error)) []T {
	kept, shared := list[:0], true
	for i, v := range list {
		accepted, err := accept(kept, v)
		if shared && err == nil && accepted == v {
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

// repeats finds addresses that were seen before: in short lists by looking, in
// long ones by a map.
type repeats map[netip.AddrPort]struct{}

func newRepeats(n int) repeats {
	if n <= 32 {
		return nil
	}
	return make(repeats, n)
}

// has reports whether a is the address of a kept backend, and expects to be told
// of every address before it is kept.
func (r repeats) has(kept []Backend, a netip.AddrPort) bool {
	if r == nil {
		return slices.ContainsFunc(kept, func(b Backend) bool { return b.Addr == a })
	}
	_, ok := r[a]
	r[a] = struct{}{}
	return ok
}
