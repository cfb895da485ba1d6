package conntrack

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// maxRanges bounds the ranges of a family, so that a filter and its successor, which is attached before the filter is
// freed, have room in net.core.optmem_max as it was before Linux 6.9: 20,480 bytes, 8 for each instruction.
const maxRanges = 64

// span has numbers from first to last.
type span struct{ first, last uint32 }

// Where a message of conntrack has what the filter looks at: the original tuple is the first attribute, the addresses
// the first in it, in all versions of the kernel (ctnetlink_conntrack_event).
const (
	familyAt = unix.SizeofNlMsghdr
	dst4At   = 40
	dst6At   = 52 + 12 // the last 32 bits
)

// destinations returns a filter of sockets that passes events of entries whose first packet went to one of some
// addresses.
func destinations(addrs []netip.Addr) []unix.SockFilter {
	var ipv4, ipv6 []uint32
	for _, a := range addrs {
		if a.Is4() {
			ipv4 = append(ipv4, binary.BigEndian.Uint32(a.AsSlice()))
		} else {
			ipv6 = append(ipv6, binary.BigEndian.Uint32(a.AsSlice()[12:]))
		}
	}
	four, six := within(spans(ipv4, maxRanges)), within(spans(ipv6, maxRanges))
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: familyAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.AF_INET6},
		{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(1 + len(four))},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: dst4At},
	}
	f = append(f, four...)
	f = append(f, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: dst6At})
	return append(f, six...)
}

// within returns instructions that pass a message if the number that was loaded is in one of some spans: a tree.
func within(list []span) []unix.SockFilter {
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	pass := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16}
	switch len(list) {
	case 0:
		return []unix.SockFilter{drop}
	case 1:
		return []unix.SockFilter{
			{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, Jf: 2, K: list[0].first},
			{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, Jt: 1, K: list[0].last},
			pass, drop,
		}
	}
	middle := len(list) / 2
	below, above := within(list[:middle]), within(list[middle:])
	f := []unix.SockFilter{
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, Jf: 1, K: list[middle].first},
		{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(below))}, // other jumps reach only 255 instructions
	}
	return append(append(f, below...), above...)
}

// spans returns the fewest spans that have all numbers and nothing in between, if those are not more than a limit, and
// otherwise as many as that, without the widest gaps.
func spans(numbers []uint32, limit int) (list []span) {
	slices.Sort(numbers)
	for _, n := range numbers {
		if last := len(list) - 1; last >= 0 && n-list[last].last <= 1 {
			list[last].last = n
		} else {
			list = append(list, span{n, n})
		}
	}
	if len(list) <= limit {
		return list
	}
	gaps := make([]int, len(list)-1) // by the number of the span before each
	for i := range gaps {
		gaps[i] = i
	}
	slices.SortFunc(gaps, func(a, b int) int {
		return cmp.Compare(list[b+1].first-list[b].last, list[a+1].first-list[a].last)
	})
	kept := gaps[:limit-1]
	slices.Sort(kept)
	merged := make([]span, 0, limit)
	from := 0
	for _, gap := range append(kept, len(list)-1) {
		merged = append(merged, span{list[from].first, list[gap].last})
		from = gap + 1
	}
	return merged
}
