package nft

import "slices"

// leastRoom is that of a large set, for which the kernel takes 64 KB.
const leastRoom = 1 << 12

// roomFor returns how many elements a large set of so many has room for.
func roomFor(elements int) int {
	room := leastRoom
	for room < 2*elements {
		room *= 2
	}
	return room
}

// renew has sets be made anew that have got more elements than the kernel has made room for, and the rules be written
// again that use them. False: that needs all of the table.
func (t *Table) renew() bool {
	for _, s := range t.sets {
		if s.gone || s.room == 0 || s.elements.Len() <= s.room {
			continue
		}
		if s.Rank > 0 {
			return false
		}
		s.outgrown = true
		uses := using(s.Name)
		for name, c := range t.chains {
			if !c.gone && slices.ContainsFunc(c.rules, uses) {
				t.touch(name, c)
			}
		}
	}
	return true
}
