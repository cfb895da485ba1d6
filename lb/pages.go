package lb

import "slices"

// record is what a table has in a slot.
type record struct {
	given *Service // what Next was given, by which it recognises a service that stays
	is    *Service // what it made of that: nearly always the same
	leads traits   // of its backends

	refused []error // the parts of given that is does not have
}

// pages is a long list in pages. Tables share them, as they do the parts of an index, so that
// one that differs in a few places costs a few pages.
type pages[T any] []*[PageSize]T

// at returns a place that was changed before, here or in a table that was copied.
func (p pages[T]) at(i int32) *T { return &p[uint32(i)/PageSize][uint32(i)%PageSize] }

// edit returns a place, to be changed. own is which pages are not shared: nil at first.
func (p *pages[T]) edit(own *map[int]bool, i int32) *T {
	if *own == nil {
		*own, *p = make(map[int]bool), slices.Clone(*p)
	}
	n := int(i) / PageSize
	if n >= len(*p) {
		*p = append(*p, make(pages[T], n+1-len(*p))...)
	}
	if !(*own)[n] {
		(*own)[n] = true
		copied := new([PageSize]T)
		if was := (*p)[n]; was != nil {
			*copied = *was
		}
		(*p)[n] = copied
	}
	return p.at(i)
}
