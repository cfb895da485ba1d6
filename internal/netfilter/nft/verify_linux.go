package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// few is how many chains are read one by one rather than all of the table.
const few = 200

// readBack reads the chains that were written, which tells them from what other programs make of them.
func (t *Table) readBack(written []string, whole bool) error {
	if whole || len(written) > few {
		now, err := t.rules(context.Background(), "")
		if err != nil {
			return err
		}
		if !whole {
			for name, was := range t.held {
				if c := t.chains[name]; c != nil && now[name] != was && !slices.Contains(written, name) {
					return fmt.Errorf("chain %s of nft table %s is not as it was written: "+
						"another program has changed it", name, t.Name)
				}
			}
		}
		if whole {
			if t.handle, _, err = t.kernels(context.Background()); err != nil {
				return err
			}
		}
		t.held = now
	} else {
		for _, name := range written {
			now, err := t.rules(context.Background(), name)
			if err != nil {
				return err
			}
			maps.Copy(t.held, now)
			if len(now) == 0 {
				delete(t.held, name)
			}
		}
	}
	for _, name := range written {
		if c := t.chains[name]; c != nil && len(t.held[name]) != handleSize*t.length(c) {
			return fmt.Errorf("chain %s of nft table %s has %d rules right after %d were written: "+
				"another program is changing it", name, t.Name, len(t.held[name])/handleSize, t.length(c))
		}
	}
	return nil
}

// length returns how many rules the kernel has for a chain.
func (t *Table) length(c *chain) int { return len(t.entrance(c)) + len(c.rules) }

// handleSize is how many bytes stand for a rule. One that is replaced has another handle.
const handleSize = 8

// many is how many chains are always read one by one: to give all rules the kernel passes those that it has given
// before with each answer of some 80, so that to read those of 100,000 chains takes ten seconds.
const many = 20000

// rules returns the handles of the rules of one chain, or of all if name is empty.
func (t *Table) rules(ctx context.Context, name string) (out map[string]string, err error) {
	if name != "" || len(t.chains) < many {
		return t.rulesBy(ctx, new(nfnl.Conn), name)
	}
	conn, err := nfnl.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	out = make(map[string]string, len(t.chains))
	for name := range t.chains {
		one, err := t.rulesBy(ctx, conn, name)
		if err != nil {
			return nil, err
		}
		maps.Copy(out, one)
	}
	return out, nil
}

// rulesBy is rules, on a socket.
func (t *Table) rulesBy(ctx context.Context, conn *nfnl.Conn, name string) (out map[string]string, err error) {
	filter := nfnl.AttrString(nil, unix.NFTA_RULE_TABLE, t.Name)
	if name != "" {
		filter = nfnl.AttrString(filter, unix.NFTA_RULE_CHAIN, name)
	}
	handles := make(map[string][]byte)
	err = conn.Dump(ctx, unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETRULE, nfnl.Family(t.IPv6), filter,
		func() { clear(handles) }, func(m nfnl.Value) {
			chain := m.Find(unix.NFTA_RULE_CHAIN).String()
			if m.Find(unix.NFTA_RULE_TABLE).String() == t.Name && (name == "" || name == chain) {
				handles[chain] = append(handles[chain], m.Find(unix.NFTA_RULE_HANDLE).Bytes...)
			}
		})
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return nil, fmt.Errorf("read rules of nft table %s: %w", t.Name, err)
	}
	out = make(map[string]string, len(handles))
	for chain, list := range handles {
		out[chain] = string(list)
	}
	return out, nil
}

// read returns the elements of a set.
func (t *Table) read(ctx context.Context, name string) (out []timed, err error) {
	filter := nfnl.AttrString(nil, unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	filter = nfnl.AttrString(filter, unix.NFTA_SET_ELEM_LIST_SET, name)
	err = nfnl.Dump(ctx, unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETSETELEM, nfnl.Family(t.IPv6), filter,
		func() { out = nil }, func(m nfnl.Value) {
			for _, x := range m.Find(unix.NFTA_SET_ELEM_LIST_ELEMENTS).Attrs() {
				out = append(out, decode(x))
			}
		})
	if err != nil {
		return nil, fmt.Errorf("read set %s of nft table %s: %w", name, t.Name, err)
	}
	return out, nil
}

// Verify reports whether the kernel holds what the last Write wrote and nothing else. If not, the next Write writes
// what differs, or replaces the table where more than rules and elements do. As long as no other program has written
// to nf_tables, and all that this one has written were tables, it costs one message. When the context ends it returns
// its error, and what it has found until then is not forgotten.
func (t *Table) Verify(ctx context.Context) (bool, error) {
	if !t.Known() {
		return false, nil
	}
	generation, alone := nfnl.Alone(t.verified)
	if alone {
		return true, nil
	}
	there, err := t.look(ctx)
	if err != nil {
		t.known = t.known && !t.damaged // what was found to differ is not all
		return false, err
	}
	if t.known = there; t.Known() {
		t.verified = generation
	}
	return t.Known(), nil
}

// look reads all of the table. It notes which rules and elements are not as they were written (damaged), for the next
// Write, and reports whether all else is there.
func (t *Table) look(ctx context.Context) (there bool, err error) {
	if same, err := t.chainsThere(ctx); err != nil || !same {
		return false, err
	}
	now, err := t.rules(ctx, "")
	if err != nil {
		return false, err
	}
	differ := 0
	for name, c := range t.chains {
		if c.present && now[name] != t.held[name] {
			differ++
			t.damaged = true
			t.touch(name, c)
		}
	}
	if differ > few {
		return false, nil
	}
	for _, s := range t.sets {
		list, err := t.read(ctx, s.Name)
		if errors.Is(err, syscall.ENOENT) || err == nil && s.Name == aliveSet && len(list) == 0 {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if !s.Dynamic {
			t.found(s, list)
		}
	}
	return true, nil
}

// found compares what the kernel holds of a set with what was written.
func (t *Table) found(s *set, list []timed) {
	plain := make([]packed, len(list))
	for i, e := range list {
		plain[i] = pack(e.Element)
	}
	if !s.elements.Match(plain) {
		t.damaged = true
		t.count(&t.counters().Elements, s.elements.Found(plain))
	}
}

// chainsThere reports whether the kernel has the table's chains and no others in it, and lets packets into them.
func (t *Table) chainsThere(ctx context.Context) (same bool, err error) {
	handle, dormant, err := t.kernels(ctx)
	t.gone = err == nil && handle == ""
	if err != nil || dormant || handle != t.handle { // handles of rules are the table's: another may have the same ones
		return false, err
	}
	for range disturbed {
		before := nfnl.Generation()
		if same, err = t.sameChains(ctx); same || err != nil || nfnl.Generation() == before {
			break
		}
	}
	return same, err
}

// disturbed is how often chains are read again when other programs' transactions came meanwhile. The kernel gives a
// chain twice, or not, if one commits while it continues a list, and does not always mark that as interrupted
// (nf_tables_dump_chains of Linux 6.18 counts those that are active, of all tables).
const disturbed = 5

func (t *Table) sameChains(ctx context.Context) (same bool, err error) {
	n, strange := 0, 0
	err = nfnl.Dump(ctx, unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETCHAIN, nfnl.Family(t.IPv6), nil,
		func() { n, strange = 0, 0 }, func(m nfnl.Value) {
			if m.Find(unix.NFTA_CHAIN_TABLE).String() != t.Name {
				return
			}
			c := t.chains[m.Find(unix.NFTA_CHAIN_NAME).String()]
			if c != nil && c.present && c.hook.is(m) {
				n++
			} else {
				strange++
			}
		})
	if err != nil {
		return false, fmt.Errorf("read chains of nft table %s: %w", t.Name, err)
	}
	present := 0
	for _, c := range t.chains {
		if c.present {
			present++
		}
	}
	return strange == 0 && n == present, nil
}

// kernels returns the handle of the kernel's table, which no other has had since the start, and whether it is dormant.
func (t *Table) kernels(ctx context.Context) (handle string, dormant bool, err error) {
	const tableHandle = 4 // NFTA_TABLE_HANDLE of linux/netfilter/nf_tables.h (Linux 4.16)
	err = nfnl.Dump(ctx, unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETTABLE, nfnl.Family(t.IPv6), nil,
		nil, func(m nfnl.Value) {
			if m.Find(unix.NFTA_TABLE_NAME).String() == t.Name {
				handle = string(m.Find(tableHandle).Bytes)
				dormant = m.Find(unix.NFTA_TABLE_FLAGS).Uint()&unix.NFT_TABLE_F_DORMANT != 0
			}
		})
	if err != nil {
		return "", false, fmt.Errorf("read nft table %s: %w", t.Name, err)
	}
	return handle, dormant, nil
}

// is reports whether the kernel's chain is at the hook, and accepts what no rule decides; nil: at none.
func (h *Hook) is(chain nfnl.Value) bool {
	const accept = 1 // NF_ACCEPT of linux/netfilter.h
	at := chain.Find(unix.NFTA_CHAIN_HOOK)
	if h == nil || len(at.Bytes) == 0 {
		return h == nil && len(at.Bytes) == 0
	}
	return uint32(at.Find(unix.NFTA_HOOK_HOOKNUM).Uint()) == h.Number &&
		int32(at.Find(unix.NFTA_HOOK_PRIORITY).Uint()) == h.Priority &&
		chain.Find(unix.NFTA_CHAIN_TYPE).String() == h.Type && chain.Find(unix.NFTA_CHAIN_POLICY).Uint() == accept
}

// Elements returns what the kernel holds of a map or a set, which may be that of another process, and whether there is
// such a table. It is for keys without Prefixes.
func Elements(ipv6 bool, table, set string) (out []Element, there bool, err error) {
	list, err := (&Table{Name: table, IPv6: ipv6}).read(context.Background(), set)
	if errors.Is(err, syscall.ENOENT) || nfnl.NoSubsystem(err) {
		return nil, false, nil
	}
	for _, e := range list {
		out = append(out, e.Element)
	}
	return out, err == nil, err
}
