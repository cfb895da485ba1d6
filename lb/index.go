package lb

import (
	"maps"
	"slices"
)

// index finds services by the addresses that clients ask for, and by ID. It is a
// value whose parts are shared by tables: who changes one changes a copy of that
// part (see builder), so that a change costs as much as what it changes.
type index struct {
	exact [shards]map[Frontend]Owner
	ids   [shards]map[ID]int32 // slots

	// losers are the slots of services that list a frontend and do not have it, or may lose it to who has the port
	// everywhere.
	losers map[Frontend][]int32

	// ports are the frontends with the unspecified address, by port.
	ports [protocols * families]pages[Owner]
}

const (
	// shards is how many parts the maps have. With 256 of them a change
	// among 10,000 services copies some 40 entries.
	shards = 256

	protocols, families = 3, 2
)

// Owner says which service owns an address. Its zero value is no service.
type Owner struct {
	Slot    int32 // of the service
	address int32 // position in the Addresses of that
	owned   bool  // false: by no service
	check   bool  // the service only answers health checks there
	Ruled   bool  // it matters who asks: see Table.Admit
}

// find returns the owner of f: the one that is exactly f, or else that of its port
// on all addresses.
func (x *index) find(f *Frontend) (Owner, bool) {
	if at, ok := x.own(f); ok {
		return at, true
	}
	addr := f.Addr.Addr()
	if addr.Is4In6() {
		return x.find(&Frontend{f.Protocol, unmap(f.Addr)})
	}
	if !addr.IsValid() || f.Protocol < TCP || f.Protocol > SCTP {
		return Owner{}, false
	}
	port := f.Addr.Port()
	if p := x.ports[portsOf(f.Protocol, addr.Is6())]; int(port/PageSize) < len(p) && p[port/PageSize] != nil {
		at := p[port/PageSize][port%PageSize]
		return at, at.owned
	}
	return Owner{}, false
}

// own returns the owner of exactly f, which has an exact address.
func (x *index) own(f *Frontend) (Owner, bool) {
	at, ok := x.exact[f.shard()][*f]
	return at, ok
}

// slot returns the slot of the service with this ID.
func (x *index) slot(id ID) (int32, bool) {
	slot, ok := x.ids[id.shard()][id]
	return slot, ok
}

// shard spreads names, which mostly differ at their end.
func (id *ID) shard() uint8 {
	h := uint8(id.Protocol)
	for i := range len(id.Name) {
		h = h*31 + id.Name[i]
	}
	for i := range len(id.Port) - 3 { // a Service may have tens of thousands, and neighbours change together
		h = h*31 + id.Port[i]
	}
	return h
}

// shard spreads addresses, which mostly differ at their end. Neighbouring ports of one address change together.
func (f *Frontend) shard() uint8 {
	h := uint8(f.Protocol) ^ uint8(f.Addr.Port()>>8)
	if a := f.Addr.Addr(); a.Is4() {
		b := a.As4()
		return h ^ b[2] ^ b[3]
	}
	b := f.Addr.Addr().As16()
	return h ^ b[14] ^ b[15]
}

// portsOf returns the position of a protocol's ports in index.ports.
func portsOf(p Protocol, ipv6 bool) int {
	at := int(p-TCP) * families
	if ipv6 {
		at++
	}
	return at
}

// private is an index that belongs to a builder as far as it says so; the rest is
// shared with tables.
type private struct {
	exact, ids [shards]bool
	losers     bool
	ports      [protocols * families]map[int]bool // pages of them
	records    map[int]bool
}

// frontends returns the part that f is in, to be changed.
func (b *builder) frontends(f *Frontend) map[Frontend]Owner {
	return ownMap(&b.index.exact, &b.own.exact, f.shard())
}

// idsLike returns the part that id is in, to be changed.
func (b *builder) idsLike(id *ID) map[ID]int32 {
	return ownMap(&b.index.ids, &b.own.ids, id.shard())
}

// contest notes that the service of a slot is to be asked again when f has another owner.
func (b *builder) contest(f Frontend, slot int32) {
	if slices.Contains(b.index.losers[f], slot) {
		return
	}
	b.ownLosers()[f] = append(slices.Clone(b.index.losers[f]), slot)
}

// yield takes contest back.
func (b *builder) yield(f Frontend, slot int32) {
	if !slices.Contains(b.index.losers[f], slot) {
		return
	}
	left := slices.DeleteFunc(slices.Clone(b.index.losers[f]), func(other int32) bool { return other == slot })
	if b.ownLosers()[f] = left; len(left) == 0 {
		delete(b.index.losers, f)
	}
}

func (b *builder) ownLosers() map[Frontend][]int32 {
	if !b.own.losers {
		b.own.losers = true
		if b.index.losers = maps.Clone(b.index.losers); b.index.losers == nil {
			b.index.losers = make(map[Frontend][]int32)
		}
	}
	return b.index.losers
}

func ownMap[K comparable, V any](all *[shards]map[K]V, own *[shards]bool, shard uint8) map[K]V {
	if !own[shard] {
		own[shard] = true
		if all[shard] = maps.Clone(all[shard]); all[shard] == nil {
			all[shard] = make(map[K]V)
		}
	}
	return all[shard]
}

// port returns the place of a frontend with the unspecified address, to be changed.
func (b *builder) port(f *Frontend) *Owner {
	i := portsOf(f.Protocol, f.Addr.Addr().Is6())
	return b.index.ports[i].edit(&b.own.ports[i], int32(f.Addr.Port()))
}
