package lb

import "net/netip"

// What who keeps something of its own for each service of a table needs, as lb/balancer does: where the table has
// them, and which it shares with the table that it was made from.

// PageSize is how many slots a Page has.
const PageSize = 256

// Page has the services of slots that follow each other. Tables in which these are the same share it.
type Page [PageSize]record

// At returns the service of a slot of the page; nil: the slot is free.
func (p *Page) At(i int) *Service { return p[i].is }

// Pages returns how many pages there are.
func (t *Table) Pages() int { return len(t.records) }

// Page returns one of them; nil: t does not have it.
func (t *Table) Page(i int) *Page {
	if i >= len(t.records) {
		return nil
	}
	return (*Page)(t.records[i])
}

// Slots returns the slots of the services in the order of At, not to be written to. A service has the same one in every
// table that is made from one that had it, so that what is kept beside a table stays in its place.
func (t *Table) Slots() []int32 { return t.slots }

// SlotOf returns the slot of the service with this ID.
func (t *Table) SlotOf(id *ID) (int32, bool) { return t.index.slot(*id) }

// In returns the service of a slot of t. The caller must not change it.
func (t *Table) In(slot int32) *Service { return t.at(slot) }

// Find returns the owner of f, as Lookup does: its slot, and whether it matters who asks, which Admit says.
func (t *Table) Find(f *Frontend) (Owner, bool) { return t.index.find(f) }

// Admit returns the set of backends that a client gets who asks for f, which has a ruled owner, and whether it may ask
// there.
func (t *Table) Admit(at Owner, f *Frontend, client netip.Addr) (in Set, allowed bool) {
	a := &t.at(at.Slot).Addresses[at.address]
	client = plain(client)
	if a.Local {
		in = a.set(t.node.has(client, plain(f.Addr.Addr())))
	}
	return in, a.allows(client)
}

// Address returns the address by which the service of at has what was asked for. The caller must not change it.
func (t *Table) Address(at Owner) *Address { return &t.at(at.Slot).Addresses[at.address] }

// Answers reports whether what a backend of this node sends to the client's own address passes this node, and gets to
// nothing else before: the backend is neither the node itself nor the client, and the client is none of the node's
// pods, whom a backend may answer without the node.
func (t *Table) Answers(backend, client netip.Addr) bool {
	if !client.IsValid() || client.Is4() != backend.Is4() || client.IsLoopback() || client.IsLinkLocalUnicast() ||
		client == backend {
		return false
	}
	_, own := t.node.addresses[backend]
	return !own && !within(t.node.podCIDRs, client)
}
