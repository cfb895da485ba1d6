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
	if !own.records[n] {
		if own.records == nil {
			own.records = make(map[int32]bool)
		}
		own.records[n] = true
		copied := new([recordsInPage]record)
		if was := (*p)[n]; was != nil {
			*copied = *was
		}
		(*p)[n] = copied
	}
	return &(*p)[n][slot%recordsInPage]
}
