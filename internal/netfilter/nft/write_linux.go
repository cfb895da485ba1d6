package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// aliveSet has one element, while the table's rules are to match.
const aliveSet = "alive"

// aliveSize leaves room for elements that have expired, or go in the transaction in which others come.
const aliveSize = 64

// maxElements is how many bytes of elements a message has: the length of an attribute has 16 bits.
const maxElements = 60000

// Write makes the kernel hold the table, in one transaction. After an error it holds what it held
// before.
func (t *Table) Write() error {
	if t.Lifetime > 0 {
		t.AddSet(Set{Name: aliveSet, Key: []Field{family}, Dynamic: true, Size: aliveSize})
	}
	b := t.batch()
	if t.known {
		t.writeChanges(b)
	} else if err := t.writeWhole(b); err != nil {
		return err
	}
	if b.empty() {
		return nil
	}
	whole := !t.known
	t.known = false
	if err := t.commit(b); err != nil {
		return err
	}
	written := t.touched
	t.settle()
	if err := t.readBack(written, whole); err != nil {
		t.known = false
		return err
	}
	return nil
}

// Renew makes the rules match for another Lifetime.
func (t *Table) Renew() error {
	if t.Lifetime == 0 || !t.known {
		return nil
	}
	b := t.batch()
	t.renew(b, true)
	return t.commit(b)
}

// commit sends a batch, and follows the generation of nf_tables.
func (t *Table) commit(b *batch) error {
	before := nfnl.Generation()
	t.counters().Transactions.Add(1)
	if err := b.send(); err != nil {
		t.counters().Failures.Add(1)
		t.verified = 0
		return fmt.Errorf("write nft table %s: %w", t.Name, err)
	}
	if t.verified != before || nfnl.Generation() != before+1 {
		t.verified = 0 // another program has written, too
	} else {
		t.verified = before + 1
	}
	return nil
}

// renew replaces the element that lets rules match: before Linux 6.12 one that is there keeps its timeout.
func (t *Table) renew(b *batch, there bool) {
	if t.Lifetime == 0 {
		return
	}
	e := timed{Element: Element{Key: t.alive()}, timeout: t.Lifetime}
	s := t.named[aliveSet]
	if there {
		// It may have expired. One that is there already keeps its data, so that both of these succeed.
		b.elements(unix.NFT_MSG_NEWSETELEM, s, []timed{e})
		b.elements(unix.NFT_MSG_DELSETELEM, s, []timed{{Element: e.Element}})
	}
	b.elements(unix.NFT_MSG_NEWSETELEM, s, []timed{e})
}

func (t *Table) alive() string { return Key(nfnl.Family(t.IPv6)) }

// writeWhole replaces the table.
func (t *Table) writeWhole(b *batch) error {
	kept := make(map[string][]timed)
	for _, s := range t.sets {
		if s.Dynamic && !s.gone && s.Name != aliveSet {
			list, err := t.read(s.Name)
			if err != nil && !errors.Is(err, syscall.ENOENT) {
				return err
			}
			kept[s.Name] = list
		}
	}
	b.table(unix.NFT_MSG_NEWTABLE)
	b.table(unix.NFT_MSG_DELTABLE)
	b.table(unix.NFT_MSG_NEWTABLE)
	for name, c := range t.chains {
		if !c.gone {
			b.chain(unix.NFT_MSG_NEWCHAIN, name, c.hook)
		}
	}
	for _, s := range t.sets {
		if !s.gone {
			b.set(unix.NFT_MSG_NEWSET, s)
		}
	}
	// Rules come before elements: for each rule that uses a map the kernel walks all of it (nf_tables_bind_set).
	for name, c := range t.chains {
		if !c.gone {
			t.writeRules(b, name, c)
		}
	}
	for _, s := range t.sets {
		if s.gone {
			continue
		}
		var list []timed
		s.elements.Each(func(e Element, wanted, _ bool) {
			if wanted {
				list = append(list, timed{Element: e})
			}
		})
		b.elements(unix.NFT_MSG_NEWSETELEM, s, append(list, kept[s.Name]...))
	}
	t.renew(b, false)
	return nil
}

// writeChanges writes what was edited.
func (t *Table) writeChanges(b *batch) {
	for _, name := range t.touched {
		if c := t.chains[name]; !c.gone && !c.present {
			b.chain(unix.NFT_MSG_NEWCHAIN, name, c.hook)
		}
	}
	for _, s := range t.sets {
		if s.fresh && !s.gone {
			b.set(unix.NFT_MSG_NEWSET, s)
			if s.Name == aliveSet {
				t.renew(b, false)
			}
		}
	}
	for _, name := range t.touched { // rules that go may hold sets, and those that come need them
		c := t.chains[name]
		if c.present && c.had > 0 {
			b.flush(name)
		}
		if !c.gone {
			t.writeRules(b, name, c)
		}
	}
	for _, s := range t.sets {
		if !s.fresh {
			b.elements(unix.NFT_MSG_DELSETELEM, s, untimed(s.elements.Surplus()))
		}
		if !s.gone {
			b.elements(unix.NFT_MSG_NEWSETELEM, s, untimed(s.elements.Missing()))
		}
	}
	for _, s := range t.sets {
		if s.gone && !s.fresh {
			b.set(unix.NFT_MSG_DELSET, s)
		}
	}
	for _, name := range t.touched {
		if c := t.chains[name]; c.gone && c.present {
			b.chain(unix.NFT_MSG_DELCHAIN, name, nil)
		}
	}
}

func untimed(list []Element) (out []timed) {
	for _, e := range list {
		out = append(out, timed{Element: e})
	}
	return out
}

// writeRules adds the rules of a chain that has none.
func (t *Table) writeRules(b *batch, name string, c *chain) {
	if c.hook != nil && t.Lifetime > 0 {
		b.rule(name, t.lease())
	}
	for _, r := range c.rules {
		b.rule(name, r)
	}
}

// lease returns the rule that ends all base chains when no process renews the table.
func (t *Table) lease() Rule {
	return NewRule(t.IPv6).NotIn(aliveSet, Family).Return().Rule("until no process renews this")
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
		return false, fmt.Errorf("delete nft table %s: %w", name, err)
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
func (b *batch) elements(command int, s *set, list []timed) {
	for len(list) > 0 {
		b.begin(command, unix.NLM_F_CREATE)
		b.str(unix.NFTA_SET_ELEM_LIST_TABLE, b.name)
		b.str(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
		start := len(b.bytes)
		b.bytes = append(b.bytes, 0, 0, 0, 0)
		for len(list) > 0 && len(b.bytes)-start < maxElements {
			b.bytes, list = s.append(b.bytes, list[0]), list[1:]
		}
		closeAttr(b.bytes, start, unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED)
		b.end()
	}
}

func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
