package redirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink/nl"
)

// kernel is what a steerer knows of its host, and what it wrote there last.
type kernel struct {
	ipt   *iptables.IPTables // nil until probed
	path  string             // of the iptables program
	nft   bool               // its backend is nf_tables
	shape shape
	facts Facts

	rules []byte                    // nil if unknown
	sets  sets                      // nil if unknown or not used
	udp   map[netip.AddrPort]uint16 // UDP frontends and their ports

	// changed are UDP frontends whose conntrack entries have not been looked at
	// since a change. They outlive a failed Sync.
	changed map[netip.AddrPort]bool
}

func (k *kernel) sync(ctx context.Context, t *IPTables, plan Plan) error {
	p, err := plan.family(t.IPv6)
	if err != nil {
		return err
	}
	if _, err := k.probe(ctx, t); err != nil {
		return err
	}
	if err := k.noteFlows(p.udp()); err != nil {
		return err
	}
	if err := t.write(ctx, p); err != nil {
		k.rules, k.sets = nil, nil
		return err
	}
	return t.forgetFlows()
}

// write brings rules and sets to the plan. Members that rules may need come
// before the rules, others go after, so that what is in the old and in the new
// plan is steered, or refused, at every moment in between.
func (t *IPTables) write(ctx context.Context, p Plan) error {
	k := &t.kernel
	whole := k.rules == nil
	rules := k.shape.render(p)
	want := sets{}
	if k.shape.sets {
		want = members(p)
		if whole {
			if err := k.readSets(); err != nil {
				return err
			}
		}
	}
	if err := t.changeSets(nl.IPSET_CMD_ADD, want, k.sets); err != nil {
		return err
	}
	if whole || !bytes.Equal(rules, k.rules) {
		t.restores.Add(1)
		if err := k.restore(ctx, k.shape, rules); err != nil {
			return err
		}
	}
	if whole {
		if err := k.ensureJumps(); err != nil {
			return err
		}
	}
	if err := t.changeSets(nl.IPSET_CMD_DEL, k.sets, want); err != nil {
		return err
	}
	k.rules, k.sets = rules, want
	return nil
}

// readSets makes the sets that are missing and reads those that are left of an
// earlier run, or were changed by others.
func (k *kernel) readSets() error {
	if err := k.shape.createSets(); err != nil {
		return err
	}
	all, err := k.shape.readSets()
	k.sets = all
	return err
}

// changeSets adds or deletes the members that are in a and not in b.
func (t *IPTables) changeSets(command int, a, b sets) error {
	for name := range a {
		var list []member
		for m := range a[name] {
			if !b[name][m] {
				list = append(list, m)
			}
		}
		sent, err := t.kernel.shape.changeSet(command, name, list)
		t.setOps.Add(sent)
		if err != nil {
			return err
		}
	}
	return nil
}

// restore runs iptables-restore once. Each table is one transaction.
func (k *kernel) restore(ctx context.Context, s shape, rules []byte) error {
	if k.nft {
		marks, err := s.marks()
		if err != nil {
			return err
		}
		rules = append(marks, rules...)
	}
	_, err := run(ctx, rules, k.path+"-restore", "--noflush", fmt.Sprintf("--wait=%d", lockWait))
	return err
}

// ensureJumps prepends the jumps that are missing. Those that are there stay where
// they are: others prepend too, and moving ours at each start would never end.
func (k *kernel) ensureJumps() error {
	for _, j := range jumps {
		if err := k.ipt.InsertUnique(j.table, j.from, 1, j.spec()...); err != nil {
			return fmt.Errorf("prepend jump to chain %s of table %s: %w", j.from, j.table, err)
		}
	}
	return nil
}

// noteFlows adds to changed the UDP frontends that begin to be steered, cease to
// be, or get another port.
func (k *kernel) noteFlows(udp map[netip.AddrPort]uint16) error {
	if k.changed == nil {
		k.changed = make(map[netip.AddrPort]bool)
	}
	if k.udp == nil {
		rules, err := k.list("nat", chainUDP)
		if err != nil {
			return err
		}
		for _, f := range steeredUDP(rules, k.shape.ipv6) {
			k.changed[f] = true
		}
	}
	for f, port := range udp {
		if k.udp[f] != port {
			k.changed[f] = true
		}
	}
	for f := range k.udp {
		if udp[f] == 0 {
			k.changed[f] = true
		}
	}
	k.udp = udp
	return nil
}

// forgetFlows deletes conntrack entries of changed frontends that are stale.
func (t *IPTables) forgetFlows() error {
	k := &t.kernel
	if len(k.changed) == 0 {
		return nil
	}
	n, err := deleteFlows(flowFilter{changed: k.changed, steered: k.udp}, t.IPv6)
	t.flows.Add(n)
	if err == nil {
		clear(k.changed)
	}
	return err
}

// list returns the rules of one of our chains, none if it does not exist.
func (k *kernel) list(table, chain string) ([]string, error) {
	chain = k.shape.chain(chain)
	if k.nft {
		// iptables-nft's own message for a chain of a table that does not exist
		// cannot be told from others.
		chains, err := nftChains(k.shape.family(), table)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(chains, func(c nftChain) bool { return c.name == chain }) {
			return nil, nil
		}
	}
	out, err := k.ipt.List(table, chain)
	if absent(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("list chain %s of table %s: %w", chain, table, err)
	}
	return slices.DeleteFunc(out, func(r string) bool { return !strings.HasPrefix(r, "-A ") }), nil
}

// absent reports whether iptables failed because a chain does not exist.
func absent(err error) bool {
	var e *iptables.Error
	return errors.As(err, &e) && e.IsNotExist()
}

func (k *kernel) verify(ctx context.Context, t *IPTables) (bool, error) {
	if _, err := k.probe(ctx, t); err != nil {
		return false, err
	}
	if k.rules == nil {
		return false, nil
	}
	intact, err := k.intact(ctx)
	if err == nil && !intact {
		k.rules, k.sets = nil, nil
	}
	return intact, err
}

func (k *kernel) intact(ctx context.Context) (bool, error) {
	for _, j := range jumps {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		ok, err := k.ipt.Exists(j.table, j.from, j.spec()...)
		if err != nil && !absent(err) {
			return false, fmt.Errorf("look for jump in chain %s of table %s: %w", j.from, j.table, err)
		}
		if !ok {
			return false, nil
		}
	}
	for table, chains := range map[string][]string{"nat": natChains, "filter": filterChains} {
		for _, c := range chains {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			have, err := k.list(table, c)
			if err != nil {
				return false, err
			}
			if len(have) != bytes.Count(k.rules, []byte("\n-A "+k.shape.chain(c)+" ")) {
				return false, nil
			}
		}
	}
	if !k.shape.sets {
		return true, nil
	}
	have, err := k.shape.readSets()
	if err != nil {
		return false, err
	}
	for name, want := range k.sets {
		if len(have[name]) != len(want) {
			return false, nil
		}
		for m := range want {
			if !have[name][m] {
				return false, nil
			}
		}
	}
	return true, nil
}
