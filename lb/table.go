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

	node node

	frontends map[Frontend]owner
	nodePorts map[nodePort]owner // those with the unspecified address
	ids       map[ID]int32       // positions in services
}

// owner says whose an address is.
type owner struct {
	service int32 // position in Table.services
	address int32 // position in the Addresses of that
	ruled   bool  // it matters who asks; if not, Pick need not look at the Address
}

// nodePort is a frontend with the unspecified address, as a key of four bytes.
type nodePort struct {
	port     uint16
	protocol Protocol
	ipv6     bool
}

// NewTable checks and indexes services, which are to be served on node. It always
// returns a usable table; the error, made by errors.Join, names each part that was
// refused:
//
//   - a service whose protocol is not TCP, UDP or SCTP, or whose ID another
//     service before it has
//   - an address or backend that is missing, multicast, of the wrong family for
//     ID.IPv6, or whose port is 0
//   - an address with an IPv6 zone or an invalid kind, listed twice, or owned by a
//     service before this one
//   - a backend with the unspecified address, or listed twice: the first stays
//   - a negative AffinityTimeout, which then counts as none
//
// The rest of a service stays when a part of it is refused. IPv4-mapped IPv6
// addresses and prefixes become IPv4 ones.
//
// An unspecified address, 0.0.0.0 or ::, owns its port on every address of its
// family that has no exact owner.
//
// Sources of the other family are left out without an error, since one list is for
// both families of a Service; a /0 of the right family stands for everybody. What
// is left is what counts, as with kube-proxy: if nothing is, everybody may ask.
//
// The slices inside the services belong to the Table from now on. They are not
// written to, so several tables may share them, and [Balancer.Update] recognises
// shared ones at no cost.
func NewTable(services []Service, node Node) (*Table, error) { return new(Table).Next(services, node) }

// Next is NewTable for services of which most have the very backends that they have
// in t, the same slices: those were checked then, and are not again.
func (t *Table) Next(services []Service, node Node) (*Table, error) {
	next := &Table{
		services:  make([]Service, 0, len(services)),
		node:      newNode(node),
		frontends: make(map[Frontend]owner, len(services)),
		nodePorts: make(map[nodePort]owner),
		ids:       make(map[ID]int32, len(services)),
	}
	var refused []error
	guess := 0
	for i := range services {
		s := &services[i]
		checked := false
		if from := t.position(guess, s.ID); from >= 0 {
			checked = sameSlice(t.services[from].Backends, s.Backends)
			guess = from + 1 // tables are made in the same order again and again
		}
		refused = append(refused, next.add(*s, checked)...)
	}
	return next, errors.Join(refused...)
}

// position returns where the service with this ID is, or -1. It looks at guess first.
func (t *Table) position(guess int, id ID) int {
	if guess < len(t.services) && t.services[guess].ID == id {
		return guess
	}
	if i, ok := t.ids[id]; ok {
		return int(i)
	}
	return -1
}

// sameSlice reports whether a and b are the same memory.
func sameSlice(a, b []Backend) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
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

// Lookup returns the service that owns f, and the address by which it does: the one
// that is exactly f, or else the unspecified one with the port of f. The caller must
// not change them.
func (t *Table) Lookup(f Frontend) (*Service, *Address, bool) {
	at, ok := t.find(&f)
	if !ok {
		return nil, nil, false
	}
	s := &t.services[at.service]
	return s, &s.Addresses[at.address], true
}

// find is Lookup by position. It reads f where it lies: what has just
// been copied through registers, in words, is slow to read back in the wider
// units that hashing uses (15 ns, half of a Pick).
func (t *Table) find(f *Frontend) (owner, bool) {
	if at, ok := t.frontends[*f]; ok {
		return at, true
	}
	addr := f.Addr.Addr()
	if addr.Is4In6() {
		return t.find(&Frontend{f.Protocol, unmap(f.Addr)})
	}
	at, ok := t.nodePorts[nodePort{f.Addr.Port(), f.Protocol, addr.Is6()}]
	return at, ok && addr.IsValid()
}

// admit returns the set of backends for f at an address with rules, or false if the
// client may not ask there.
func (t *Table) admit(at owner, f *Flow) (set, bool) {
	a := &t.services[at.service].Addresses[at.address]
	client, asked := plain(f.Client), plain(f.Frontend.Addr.Addr())
	if !t.node.allowed(a, client, asked) {
		return 0, false
	}
	return a.set(a.Local && t.node.has(client, asked)), true
}

// add appends s without the parts it must refuse, one error each. checked says that
// its backends are known to be good.
func (t *Table) add(s Service, checked bool) []error {
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

	s.Addresses = filter(s.Addresses, sameAddress, func(kept []Address, a Address) (Address, error) {
		a.Addr, a.Sources = unmap(a.Addr), normaliseSources(a.Sources, s.IPv6)
		err := checkAddress(&a, s.IPv6)
		if err == nil {
			err = t.claim(Frontend{s.Protocol, a.Addr}, owner{position, int32(len(kept)), a.ruled()})
		}
		if err != nil {
			refuse("address "+a.Addr.String(), err)
		}
		return a, err
	})
	if !checked {
		repeated := newRepeats(len(s.Backends))
		s.Backends = filter(s.Backends, same, func(kept []Backend, b Backend) (Backend, error) {
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
	}
	if s.AffinityTimeout < 0 {
		refuse("affinity", fmt.Errorf("negative timeout %d", s.AffinityTimeout))
		s.AffinityTimeout = 0
	}
	t.ids[s.ID] = position
	t.services = append(t.services, s)
	return refused
}

// claim makes by the owner of f.
func (t *Table) claim(f Frontend, by owner) error {
	first, ok := t.frontends[f]
	switch {
	case ok && first.service == by.service:
		return errors.New("listed twice")
	case ok:
		return fmt.Errorf("owned by service %s", t.services[first.service].ID)
	}
	t.frontends[f] = by
	if f.Addr.Addr().IsUnspecified() {
		t.nodePorts[nodePort{f.Addr.Port(), f.Protocol, f.Addr.Addr().Is6()}] = by
	}
	return nil
}

func checkAddress(a *Address, ipv6 bool) error {
	switch {
	case a.Addr.Addr().Zone() != "":
		return errors.New("has a zone")
	case a.Kind > LoadBalancerIP:
		return fmt.Errorf("invalid kind %d", a.Kind)
	}
	return checkAddr(a.Addr, ipv6)
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

var errOtherFamily = errors.New("prefix of the other family")

// normaliseSources returns what counts of the sources of an address. An invalid
// prefix stays, and contains nobody: it must not open the address to everybody.
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
