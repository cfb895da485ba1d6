package nearest

import (
	"iter"
	"strings"
)

// Of returns the one of some names that may be meant by a word, as by one with a letter less, or in camel case. Empty:
// none is near, or it is one of them.
func Of(word string, names iter.Seq[string]) (near string) {
	const longest = 64
	if len(word) > longest {
		return ""
	}
	least, short := max(1, len(word)/4)+1, plain(word)
	for w := range names {
		if w == word {
			return ""
		}
		if d := distance(short, plain(w)); d < least {
			least, near = d, w
		}
	}
	return near
}

// separators are what a word may be written with or without.
var separators = strings.NewReplacer("-", "", "_", "", ".", "", " ", "")

// plain returns a word in small letters, without separators.
func plain(word string) string { return separators.Replace(strings.ToLower(word)) }

// distance returns how many letters must be put in, left out, replaced, or exchanged with the next one.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
