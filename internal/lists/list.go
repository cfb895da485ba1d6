package lists

import (
	"iter"
	"slices"
	"sort"
	"unsafe"
)

// List is a long list in pages, none of which is changed or empty: lists share those in which they are the same, so
// that one that differs in a place costs a page, and what is different of two is found by their pages. With 100,000
// objects a change of one copies 12 kB, where it was 0.8 MB. The zero List is empty.
type List[T any] struct {
	pages  [][]T
	length int
}

// pageSize is how long a page is that Of makes. One that objects are put into is divided when it is twice as long.
const pageSize = 256

// Of returns a list of all, which must not be written to any more.
func Of[T any](all []T) List[T] {
	return List[T]{slices.Collect(slices.Chunk(all, pageSize)), len(all)}
}

// Update returns a list of all, which it copies but for the pages of l before and behind what is different.
func Update[T comparable](l List[T], all []T) List[T] {
	pages, length := l.pages, len(all)
	first := 0
	for first < len(pages) && hasPrefix(all, pages[first]) {
		all = all[len(pages[first]):]
		first++
	}
	last := len(pages)
	for last > first && hasSuffix(all, pages[last-1]) {
		last--
		all = all[:len(all)-len(pages[last])]
	}
	var others [][]T
	for len(all) > 0 {
		n := pageSize
		if len(all) < 2*pageSize { // rather than one of next to nothing
			n = len(all)
		}
		others, all = append(others, slices.Clone(all[:n])), all[n:]
	}
	return List[T]{slices.Concat(pages[:first], others, pages[last:]), length}
}

func hasPrefix[T comparable](all, page []T) bool {
	return len(page) <= len(all) && slices.Equal(all[:len(page)], page)
}

func hasSuffix[T comparable](all, page []T) bool {
	return len(page) <= len(all) && slices.Equal(all[len(all)-len(page):], page)
}

// Len returns how many there are.
func (l List[T]) Len() int { return l.length }

// All yields all, in their order.
func (l List[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, page := range l.pages {
			for _, v := range page {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// AppendTo appends all to a slice.
func (l List[T]) AppendTo(all []T) []T {
	all = slices.Grow(all, l.length)
	for _, page := range l.pages {
		all = append(all, page...)
	}
	return all
}

// Place is where one is in a list, or would be.
type Place struct{ page, at int }

// Search returns where what is searched for is, or would be, as slices.BinarySearchFunc does, and whether it is there.
// compare says how one in the list, which is in that order, compares with it.
func (l List[T]) Search(compare func(T) int) (p Place, found bool) {
	p.page = max(0, sort.Search(len(l.pages), func(i int) bool { return compare(l.pages[i][0]) > 0 })-1)
	if len(l.pages) > 0 {
		page := l.pages[p.page]
		p.at, found = sort.Find(len(page), func(i int) int { return -compare(page[i]) })
	}
	return p, found
}

// At returns the one at a place that was found.
func (l List[T]) At(p Place) T { return l.pages[p.page][p.at] }

// Set returns the list with another one at a place that was found.
func (l List[T]) Set(p Place, v T) List[T] {
	page := slices.Clone(l.pages[p.page])
	page[p.at] = v
	return l.with(p.page, 0, page)
}

// Insert returns the list with one more, at a place.
func (l List[T]) Insert(p Place, v T) List[T] {
	if len(l.pages) == 0 {
		return Of([]T{v})
	}
	old := l.pages[p.page]
	page := append(append(append(make([]T, 0, len(old)+1), old[:p.at]...), v), old[p.at:]...)
	if half := len(page) / 2; half >= pageSize {
		return l.with(p.page, 1, slices.Clip(page[:half]), page[half:])
	}
	return l.with(p.page, 1, page)
}

// Delete returns the list without the one at a place that was found.
func (l List[T]) Delete(p Place) List[T] {
	if old := l.pages[p.page]; len(old) > 1 {
		return l.with(p.page, -1, slices.Delete(slices.Clone(old), p.at, p.at+1))
	}
	return l.with(p.page, -1)
}

// With returns the list with others at some positions, each below Len.
func (l List[T]) With(others iter.Seq2[int, T]) List[T] {
	pages, ends, mine := slices.Clone(l.pages), make([]int, len(l.pages)), make(map[int]bool)
	end := 0
	for i, page := range pages {
		end += len(page)
		ends[i] = end
	}
	for at, v := range others {
		n := sort.SearchInts(ends, at+1)
		if !mine[n] {
			mine[n], pages[n] = true, slices.Clone(pages[n])
		}
		pages[n][at-ends[n]+len(pages[n])] = v
	}
	return List[T]{pages, l.length}
}

// with returns the list with others in place of a page, and with so many more in them.
func (l List[T]) with(page, more int, others ...[]T) List[T] {
	pages := append(append(make([][]T, 0, len(l.pages)+len(others)-1), l.pages[:page]...), others...)
	return List[T]{append(pages, l.pages[page+1:]...), l.length + more}
}

// Equal reports whether two lists have the same, in the same order. Of has made both, or Update one of the other.
func Equal[T comparable](a, b List[T]) bool {
	return slices.EqualFunc(a.pages, b.pages, slices.Equal[[]T])
}

// apart returns what is in pages that only one of two lists has, in the order of each.
func (l List[T]) apart(other List[T]) (mine, others []T) {
	type place struct {
		first  *T
		length int
	}
	key := func(page []T) place { return place{unsafe.SliceData(page), len(page)} }
	a, b := l.pages, other.pages
	for len(a) > 0 && len(b) > 0 && key(a[0]) == key(b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && key(a[len(a)-1]) == key(b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	shared := make(map[place]bool)
	for _, page := range a {
		shared[key(page)] = false
	}
	for _, page := range b {
		if _, ok := shared[key(page)]; ok {
			shared[key(page)] = true
		} else {
			others = append(others, page...)
		}
	}
	for _, page := range a {
		if !shared[key(page)] {
			mine = append(mine, page...)
		}
	}
	return mine, others
}

// Difference returns what is in only one of two lists. Pages that both have cost next to nothing.
func Difference[T comparable](was, is List[T]) (gone, come []T) { return difference(was.apart(is)) }

// difference is Difference for slices. Those that are the same at their beginning and end cost next to nothing.
func difference[T comparable](was, is []T) (gone, come []T) {
	for len(was) > 0 && len(is) > 0 && was[0] == is[0] {
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	if len(was) == 0 || len(is) == 0 {
		return was, is
	}
	known := make(map[T]bool, len(was))
	for _, v := range was {
		known[v] = true
	}
	for _, v := range is {
		if _, ok := known[v]; !ok {
			come = append(come, v)
		} else {
			known[v] = false
		}
	}
	for _, v := range was {
		if known[v] {
			gone = append(gone, v)
		}
	}
	return gone, come
}
