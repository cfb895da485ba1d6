package nft

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// replace writes all of the table, but leaves base chains that are there. The kernel drops all packets in queues when
// a base chain goes (nf_queue_nf_hook_drop), and packets that are on their way do not meet a new one.
func (t *Table) replace() error {
	old := t.old()
	err := t.replaceAll(old)
	if err != nil && old != nil {
		// The table has changed meanwhile, or the kernel keeps chains that elements of deleted maps lead to.
		err = t.replaceAll(nil)
	}
	return err
}

func (t *Table) replaceAll(x *old) error {
	b := t.batch()
	if err := t.whole(b, x); err != nil {
		return err
	}
	if err := t.commit(b); err != nil {
		return err
	}
	t.verified = b.generation // all that is in the table is what was written
	return nil
}

// Try makes the kernel take the whole table and delete it again, in one transaction that no packet meets. The error
// says what the kernel does not take. The table is dormant, so that no base chain comes and goes.
func (t *Table) Try() error {
	if t.Lifetime > 0 {
		t.AddSet(alive.Set)
	}
	b := t.batch()
	b.dormant = true
	if err := t.whole(b, nil); err != nil {
		return err
	}
	b.table(unix.NFT_MSG_DELTABLE)
	if err := b.send(); err != nil {
		return b.failed("try", err)
	}
	return nil
}

// old is what the kernel has in a table that is to be replaced.
type old struct {
	chains map[string]bool // whether it is a base chain
	sets   map[string]bool
}

// old returns what the kernel has in the table. It returns nil if the table is not there or cannot be read, or if a
// base chain is not as it is to be.
func (t *Table) old() *old {
	handle, dormant, err := t.kernels(context.Background())
	if err != nil || handle == "" || dormant {
		return nil
	}
	x, strange := new(old), false
	err = nfnl.Dump(context.Background(), unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETCHAIN, nfnl.Family(t.IPv6), nil,
		func() { x.chains, strange = make(map[string]bool), false }, func(m nfnl.Value) {
			if m.Find(unix.NFTA_CHAIN_TABLE).String() != t.Name {
				return
			}
			name, base := m.Find(unix.NFTA_CHAIN_NAME).String(), len(m.Find(unix.NFTA_CHAIN_HOOK).Bytes) > 0
			c := t.chains[name]
			strange = strange || base && (c == nil || c.gone || !c.hook.is(m))
			x.chains[name] = base
		})
	if err != nil || strange {
		return nil
	}
	const anonymous = 1 // NFT_SET_ANONYMOUS: it goes with its rule
	err = nfnl.Dump(context.Background(), unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETSET, nfnl.Family(t.IPv6),
		nfnl.AttrString(nil, unix.NFTA_SET_TABLE, t.Name),
		func() { x.sets = make(map[string]bool) }, func(m nfnl.Value) {
			if m.Find(unix.NFTA_SET_TABLE).String() == t.Name && m.Find(unix.NFTA_SET_FLAGS).Uint()&anonymous == 0 {
				x.sets[m.Find(unix.NFTA_SET_NAME).String()] = true
			}
		})
	if err != nil {
		return nil
	}
	return x
}

// clear appends messages that delete all of the table but its base chains.
func (b *batch) clear(x *old) {
	b.flush("")
	for name := range x.sets {
		b.set(unix.NFT_MSG_DELSET, &set{Set: Set{Name: name}})
	}
	for name, base := range x.chains {
		if !base {
			b.chain(unix.NFT_MSG_DELCHAIN, name, nil)
		}
	}
}

// whole appends messages that replace what is in the table but its base chains, or all of it where that is nil.
func (t *Table) whole(b *batch, x *old) error {
	kept, err := t.dynamic()
	if err != nil {
		return err
	}
	b.bytes = slices.Grow(b.bytes, t.size())
	if x != nil {
		b.clear(x)
	} else {
		b.table(unix.NFT_MSG_NEWTABLE)
		b.table(unix.NFT_MSG_DELTABLE)
		b.table(unix.NFT_MSG_NEWTABLE)
		x = new(old)
	}
	names := slices.Sorted(maps.Keys(t.chains)) // in the order in which nft is to list them
	for _, name := range names {
		if c := t.chains[name]; !c.gone && !x.chains[name] {
			b.chain(unix.NFT_MSG_NEWCHAIN, name, c.hook)
		}
	}
	for _, s := range t.sets {
		if !s.gone {
			b.set(unix.NFT_MSG_NEWSET, s)
		}
	}
	// Rules come before elements: for each rule that uses a map the kernel walks all of it (nf_tables_bind_set).
	for _, name := range names {
		if c := t.chains[name]; !c.gone {
			t.writeRules(b, name, c)
		}
	}
	for _, s := range t.sets {
		if s.gone {
			continue
		}
		b.all(s, kept[s.Name])
	}
	if t.Lifetime > 0 {
		b.grant(t.Lifetime)
	}
	return nil
}
