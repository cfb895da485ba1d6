package lb

// record is what a table has in a slot.
type record struct {
	given *Service // what Next was given, by which it recognises a service that stays
	is    *Service // what it made of that: nearly always the same
}

// pages holds the records of a table by their slots. Tables share its parts, as they do
// those of an index, so that one that differs in a few services costs a few pages.
type pages []*[recordsInPage]record

// recordsInPage is such that with 10,000 services a page is about as long as the list
// of pages, both of which are copied for a change.
const recordsInPage = 64

// at returns what is in a slot that is in use.
func (p pages) at(slot int32) *record {
	return &p[uint32(slot)/recordsInPage][uint32(slot)%recordsInPage]
}

// record returns the place of a slot, to be changed; there are pages up to it or next
// to it.
func (own *private) record(p *pages, slot int32) *record {
	n := slot / recordsInPage
	if int(n) == len(*p) {
		*p = append(*p, nil)
	}
	if !own.records.has(n) {
		own.records.grow(int(n) + 1)
		own.records.set(n)
		copied := new([recordsInPage]record)
		if was := (*p)[n]; was != nil {
			*copied = *was
		}
		(*p)[n] = copied
	}
	return &(*p)[n][slot%recordsInPage]
}

// bits is a set of small numbers.
type bits []uint64

// newBits returns an empty set of numbers below n.
func newBits(n int) bits { return make(bits, (n+63)/64) }

// grow makes room for numbers below n.
func (b *bits) grow(n int) {
	for len(*b)*64 < n {
		*b = append(*b, 0)
	}
}

func (b bits) set(i int32) { b[uint32(i)/64] |= 1 << (uint32(i) % 64) }

// has reports whether i is in the set, also if there is no room for it.
func (b bits) has(i int32) bool {
	return int(uint32(i)/64) < len(b) && b[uint32(i)/64]&(1<<(uint32(i)%64)) != 0
}
