package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// maxElements is how many bytes of elements a message has: the length of an attribute has 16 bits.
const maxElements = 60000

// Write makes the kernel hold the table, in one transaction unless sets of several ranks change
// (Set.Rank). After an error it holds what it held before, or some of the ranks as they are to be.
func (t *Table) Write() error {
	if t.Lifetime > 0 {
		t.AddSet(alive.Set)
	}
	whole := !t.known || !t.renew()
	written := t.touched
	t.known = false
	wrote, err := true, error(nil)
	if !whole {
		wrote, err = t.writeChanges()
		whole = err != nil && t.damaged // it is not as it was found to be any more
	}
	if whole {
		wrote, err = true, t.replace()
	}
	if err != nil {
		return err
	}
	t.settle()
	if !wrote {
		return nil
	}
	if err := t.readBack(written, whole); err != nil {
		t.known = false
		return err
	}
	return nil
}

// commit sends a batch, and counts it.
func (t *Table) commit(b *batch) error {
	t.counters().Transactions.Add(1)
	if err := b.send(); err != nil {
		t.counters().Failures.Add(1)
		t.verified = 0
		return b.failed("write", err)
	}
	return nil
}

// all appends messages that add all elements of a set, and others.
func (b *batch) all(s *set, others []timed) {
	b.elements(unix.NFT_MSG_NEWSETELEM, s, func(yield func(timed) bool) {
		more := true
		s.elements.Each(func(p packed, wanted, _ bool) {
			more = more && (!wanted || yield(timed{Element: p.element()}))
		})
		for _, e := range others {
			more = more && yield(e)
		}
	})
}

// dynamic reads what rules have added to sets, unless the table has gone.
func (t *Table) dynamic() (map[string][]timed, error) {
	all := make(map[string][]timed)
	for _, s := range t.sets {
		if !s.Dynamic || s.gone || s.Name == aliveSet || t.gone {
			continue
		}
		list, err := t.read(context.Background(), s.Name)
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			return nil, err
		}
		for i := range list { // rules that renew an element leave its timeout, which the kernel compares
			list[i].timeout = max(list[i].timeout, list[i].left)
		}
		all[s.Name] = list
	}
	return all, nil
}

// size is about how many bytes a transaction with all of the table has, rather more than fewer: to have its buffer grow
// step by step takes several times as long as to fill it.
func (t *Table) size() (n int) {
	const message, set = 72, 256 // with the names of tables
	for name, c := range t.chains {
		n += message + len(name)
		for _, r := range c.rules {
			n += message + len(name) + len(r)
		}
	}
	for _, s := range t.sets {
		n += set
		s.elements.Each(func(p packed, _, _ bool) { n += elementSize(len(p)) })
	}
	return n
}

// writeChanges writes what was edited, rank by rank, and reports whether that was anything.
func (t *Table) writeChanges() (wrote bool, err error) {
	step := func(b *batch) error {
		if b.empty() {
			return nil
		}
		if wrote {
			if err := netfilter.AwaitReaders(); err != nil {
				return err
			}
		}
		wrote = true
		if err := t.commit(b); err != nil {
			return err
		}
		for _, c := range b.changes {
			t.note(c.set, c.list, c.present)
		}
		return nil
	}
	highest := 0
	for _, s := range t.sets {
		highest = max(highest, s.Rank)
	}
	for rank := highest; rank > 0; rank-- {
		b := t.batch()
		for _, s := range t.ranked(rank) {
			b.grow(s, false)
		}
		if err := step(b); err != nil {
			return wrote, err
		}
	}
	if err := step(t.changes()); err != nil {
		return wrote, err
	}
	for rank := 1; rank <= highest; rank++ {
		b := t.batch()
		for _, s := range t.ranked(rank) {
			b.shrink(s)
		}
		if err := step(b); err != nil {
			return wrote, err
		}
	}
	return wrote, nil
}

// ranked returns the sets of a rank.
func (t *Table) ranked(rank int) (out []*set) {
	for _, s := range t.sets {
		if s.Rank == rank {
			out = append(out, s)
		}
	}
	return out
}

// changes is a transaction with what was edited, but for sets of rank 1 and more.
func (t *Table) changes() *batch {
	b, sets := t.batch(), t.ranked(0)
	for _, name := range t.touched {
		if c := t.chains[name]; !c.gone && !c.present {
			b.chain(unix.NFT_MSG_NEWCHAIN, name, c.hook)
		}
	}
	for _, name := range t.touched { // rules that go may hold sets
		if c := t.chains[name]; c.present && (c.had > 0 || t.damaged) {
			b.flush(name)
		}
	}
	for _, s := range sets { // those that rules need
		if s.outgrown {
			b.set(unix.NFT_MSG_DELSET, s)
			b.set(unix.NFT_MSG_NEWSET, s)
		}
		b.create(s)
		if s.fresh && s.Name == aliveSet {
			b.grant(t.Lifetime)
		}
	}
	for _, name := range t.touched {
		if c := t.chains[name]; !c.gone {
			t.writeRules(b, name, c)
		}
	}
	for _, s := range sets {
		if s.outgrown {
			b.all(s, nil)
		} else {
			b.grow(s, true)
		}
	}
	for _, s := range sets {
		b.drop(s)
	}
	for _, name := range t.touched {
		if c := t.chains[name]; c.gone && c.present {
			b.chain(unix.NFT_MSG_DELCHAIN, name, nil)
		}
	}
	return b
}

// create appends a message that makes a set that is not there.
func (b *batch) create(s *set) {
	if s.fresh && !s.gone && !b.made[s] {
		b.set(unix.NFT_MSG_NEWSET, s)
		b.made[s] = true
	}
}

// drop appends a message that deletes a set that is not to be there.
func (b *batch) drop(s *set) {
	if s.gone && !s.fresh {
		b.set(unix.NFT_MSG_DELSET, s)
	}
}

// grow adds the elements that a set lacks. If all, it deletes those that are to go as well, and else those
// alone that would overlap what is added.
func (b *batch) grow(s *set, all bool) {
	if s.gone {
		return
	}
	b.create(s)
	come, gone := s.elements.Missing(), s.elements.Surplus()
	if !all {
		gone = overlapping(gone, come)
	}
	if !s.fresh {
		b.change(s, gone, false)
	}
	b.change(s, come, true)
}

// shrink deletes the elements that are to go, and the set if it is.
func (b *batch) shrink(s *set) {
	if !s.fresh && !s.gone {
		b.change(s, s.elements.Surplus(), false)
	}
	b.drop(s)
}

// overlapping returns the ranges of a list that overlap any of others, which do not overlap each other.
func overlapping(list, ofOthers []packed) (out []packed) {
	if len(list) == 0 || len(ofOthers) == 0 {
		return nil
	}
	byKey := func(a, b Element) int { return strings.Compare(a.Key, b.Key) }
	others := make([]Element, len(ofOthers))
	for i, p := range ofOthers {
		others[i] = p.element()
	}
	slices.SortFunc(others, byKey)
	for _, p := range list {
		e := p.element()
		i, same := slices.BinarySearchFunc(others, e, byKey)
		if same || i > 0 && others[i-1].End >= e.Key || i < len(others) && others[i].Key <= e.End {
			out = append(out, p)
		}
	}
	return out
}

// change appends messages that add elements to a set or delete them, and notes what they change.
func (b *batch) change(s *set, list []packed, present bool) {
	if len(list) == 0 {
		return
	}
	b.bytes = slices.Grow(b.bytes, len(list)*elementSize(len(list[0])))
	command := unix.NFT_MSG_DELSETELEM
	if present {
		command = unix.NFT_MSG_NEWSETELEM
	}
	b.elements(command, s, func(yield func(timed) bool) {
		for _, p := range list {
			if !yield(timed{Element: p.element()}) {
				return
			}
		}
	})
	b.changes = append(b.changes, change{s, list, present})
}

// writeRules adds the rules of a chain that has none.
func (t *Table) writeRules(b *batch, name string, c *chain) {
	for _, r := range t.entrance(c) {
		b.rule(name, r)
	}
	for _, r := range c.rules {
		b.rule(name, r)
	}
}

// entrance returns the first rules of a chain, which are not the caller's.
func (t *Table) entrance(c *chain) (out []Rule) {
	if c.leased && t.Lifetime > 0 {
		out = append(out, NewRule(t.IPv6).NotIn(aliveSet, Family).Return().Rule("no process renews this any more"))
	}
	return out
}

// Remove removes a table with all that is in it, and reports whether it was there.
func Remove(ipv6 bool, name string) (there bool, err error) {
	t := &Table{Name: name, IPv6: ipv6}
	b := t.batch()
	b.table(unix.NFT_MSG_DELTABLE)
	switch err := b.send(); {
	case errors.Is(err, syscall.ENOENT), nfnl.NoSubsystem(err):
		return false, nil
	case err != nil:
		return false, b.failed("delete", err)
	}
	return true, nil
}

// set appends a message about a set.
func (b *batch) set(command int, s *set) {
	b.begin(command, unix.NLM_F_CREATE)
	b.str(unix.NFTA_SET_TABLE, b.name)
	b.str(unix.NFTA_SET_NAME, s.Name)
	if command == unix.NFT_MSG_DELSET {
		b.end()
		return
	}
	keyType, keyLen := describe(s.Key, b.ipv6)
	flags := uint32(0)
	var desc []byte
	if len(s.Key) > 1 {
		flags |= nftSetConcat
		var fields []byte
		for _, f := range s.Key {
			n := nfnl.Attr(nil, nftaSetFieldLen, be32(uint32(f.length(b.ipv6))))
			fields = nfnl.AttrNested(fields, unix.NFTA_LIST_ELEM, n)
		}
		desc = nfnl.AttrNested(desc, nftaSetDescConcat, fields)
	}
	if s.Prefixes {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
		desc = nfnl.Attr(desc, unix.NFTA_SET_DESC_SIZE, be32(s.Size))
	}
	if s.Large {
		s.room = roomFor(s.elements.Len())
		desc = nfnl.Attr(desc, unix.NFTA_SET_DESC_SIZE, be32(uint32(s.room)))
	}
	if s.Verdicts || s.Data != nil {
		flags |= unix.NFT_SET_MAP
		dataType, dataLen := uint32(nftDataVerdictType), 16 // sizeof(struct nft_verdict)
		if !s.Verdicts {
			dataType, dataLen = describe(s.Data, b.ipv6)
		}
		b.attr(unix.NFTA_SET_DATA_TYPE, be32(dataType))
		b.attr(unix.NFTA_SET_DATA_LEN, be32(uint32(dataLen)))
	}
	b.attr(unix.NFTA_SET_FLAGS, be32(flags))
	b.attr(unix.NFTA_SET_KEY_TYPE, be32(keyType))
	b.attr(unix.NFTA_SET_KEY_LEN, be32(uint32(keyLen)))
	b.attr(unix.NFTA_SET_ID, be32(b.sets+1))
	b.sets++
	if desc != nil {
		b.attr(unix.NFTA_SET_DESC|unix.NLA_F_NESTED, desc)
	}
	b.end()
}

// elements appends messages that add elements to a set or delete them.
func (b *batch) elements(command int, s *set, list iter.Seq[timed]) {
	start := 0 // of the list that is open; 0: none is
	end := func() {
		closeAttr(b.bytes, start, unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED)
		b.end()
		start = 0
	}
	for e := range list {
		if start == 0 {
			b.begin(command, unix.NLM_F_CREATE)
			b.str(unix.NFTA_SET_ELEM_LIST_TABLE, b.name)
			b.str(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
			start = len(b.bytes)
			b.bytes = append(b.bytes, 0, 0, 0, 0)
		}
		if b.bytes = s.append(b.bytes, e); len(b.bytes)-start >= maxElements {
			end()
		}
	}
	if start > 0 {
		end()
	}
}

func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
