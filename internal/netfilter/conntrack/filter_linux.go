package conntrack

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
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

// anyOf returns a filter of sockets that passes what any of some wants has.
func anyOf(wants []Want) (filter []unix.SockFilter) {
	for _, w := range wants {
		f := w.filter()
		for i := range filter { // what it would drop is shown to the next
			if filter[i] == drop {
				filter[i] = unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(filter) - i - 1)}
			}
		}
		filter = append(filter, f...)
	}
	return append(filter, drop) // if there are none
}

// filter returns a filter that passes what is wanted.
func (w *Want) filter() []unix.SockFilter {
	kinds := w.Kinds.filter()
	switch {
	case w.Kinds&^Lost == 0:
		return []unix.SockFilter{drop}
	case w.Of == Any:
		return append(kinds, pass)
	case w.Of == Translated:
		return append(kinds, translated()...)
	}
	return append(kinds, destinations(w.Addrs)...)
}

// filter returns instructions that drop what is not of the kinds, and go on with the next ones else. The groups tell
// New from Update.
func (k Kinds) filter() []unix.SockFilter {
	isDestroy := func(yes, no uint8) []unix.SockFilter {
		return []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: kindAt()},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: yes, Jf: no, K: nl.IPCTNL_MSG_CT_DELETE},
			drop,
		}
	}
	switch {
	case k&(Update|Turn) == Turn:
		return turns()
	case k&(New|Update) == 0:
		return isDestroy(1, 0)
	case k&Destroy == 0:
		return isDestroy(0, 1)
	}
	return nil
}

// kindAt returns where the low byte of nlmsg_type is, in the order of the host.
func kindAt() uint32 {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		return 5
	}
	return 4
}

// destinations returns a filter that passes events of entries whose first packet went to one of some
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

// Attributes of a message are after nlmsghdr and nfgenmsg. The kernel finds one by these (Documentation/networking/
// filter.rst, "nla" and "nlan"): A is where to look, X is the kind, and A becomes where it is, or 0.
const (
	attrsAt    = unix.SizeofNlMsghdr + nl.SizeofNfgenmsg
	findAttr   = 1<<32 - 0x1000 + 12 // SKF_AD_OFF + SKF_AD_NLATTR
	findInAttr = 1<<32 - 0x1000 + 16 // SKF_AD_OFF + SKF_AD_NLATTR_NEST
)

// find returns instructions after which A is where an attribute is, and that jump forward by none instructions if it
// is not there.
func find(how, kind uint32, none uint8) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LDX | unix.BPF_IMM, K: kind},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: how},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: none},
	}
}

// translated returns a filter that passes events of entries whose destination is translated.
func translated() []unix.SockFilter {
	f := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_IMM, K: attrsAt}}
	f = append(f, find(findAttr, nl.CTA_STATUS, 4)...)
	return append(f,
		unix.SockFilter{Code: unix.BPF_MISC | unix.BPF_TAX},
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_IND, K: unix.SizeofNlAttr},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: 1, K: uint32(DstTranslated)},
		pass, drop)
}

// turns returns instructions that drop what is not of kind Turn, and of Destroy what a Turn has said, and go on with
// the next ones else.
func turns() []unix.SockFilter {
	update := updates()
	destroy := append(destroys(), unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(update))})
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: kindAt()},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: uint8(len(destroy)), K: nl.IPCTNL_MSG_CT_DELETE},
	}
	return slices.Concat(f, destroy, update)
}

// updates are those of turns for what is not Destroy.
func updates() []unix.SockFilter {
	state := []unix.SockFilter{
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: unix.SizeofNlAttr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 3, K: uint32(TCPSynRecv)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 2, K: uint32(TCPTimeWait)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: uint32(TCPClose)},
		drop,
	}
	last := len(state) - 1
	tcp := append(find(findInAttr, ctaProtoInfoState, uint8(last)), state...)
	// What has no state of TCP is of SCTP.
	tcp = append(find(findInAttr, nl.CTA_PROTOINFO_TCP, uint8(len(tcp))), tcp...)
	f := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_IMM, K: attrsAt}}
	f = append(f, find(findAttr, nl.CTA_PROTOINFO, 1)...)
	f = append(f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: 1}, drop)
	return append(f, tcp...)
}

// destroys are those of turns for Destroy: a connection that has ended for both was said to have, and so was one that
// was reset, if there was an answer.
func destroys() []unix.SockFilter {
	answered := []unix.SockFilter{
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_IND, K: unix.SizeofNlAttr},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: 1, K: uint32(SeenReply)},
		drop,
	}
	answered = append(find(findAttr, nl.CTA_STATUS, uint8(len(answered))), answered...)
	answered = append([]unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_IMM, K: attrsAt}}, answered...)
	f := append([]unix.SockFilter{
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: unix.SizeofNlAttr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(TCPTimeWait)},
		drop,
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: uint8(len(answered)), K: uint32(TCPClose)},
	}, answered...)
	f = append(find(findInAttr, ctaProtoInfoState, uint8(len(f))), f...)
	f = append(find(findInAttr, nl.CTA_PROTOINFO_TCP, uint8(len(f))), f...)
	f = append(find(findAttr, nl.CTA_PROTOINFO, uint8(len(f))), f...)
	return append([]unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_IMM, K: attrsAt}}, f...)
}

var (
	drop = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	pass = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16}
)

// within returns instructions that pass a message if the number that was loaded is in one of some spans: a tree.
func within(list []span) []unix.SockFilter {
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
