package iptables

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// heldChain is what the kernel holds in one chain. The rules of a chain of ours are as
// they were while their number and their hash are; a rule that is replaced by an equal
// one counts as another, as nf_tables gives it another handle.
type heldChain struct {
	rules int
	hash  uint64

	// Of a chain of the kernel: its rules up to the last jump of ours.
	before  []string // targets
	foreign bool     // a rule leads to a chain of ours that no jump of ours leads to
}

// held is what the kernel holds in our chains, and in those with jumps to them.
type held map[netfilter.Place]heldChain

func (h held) set(at netfilter.Place, x heldChain) {
	if x.rules == 0 && x.hash == 0 {
		delete(h, at)
		return
	}
	h[at] = x
}

// seed makes the hashes of this process.
var seed = maphash.MakeSeed()

// keep returns what is remembered of the rules of a chain.
func keep(at netfilter.Place, rules []netfilter.Rule) heldChain {
	if !ours(at.Table, at.Chain) {
		var x heldChain
		for _, r := range rules {
			x.before = append(x.before, r.Target)
			x.foreign = x.foreign || ours(at.Table, r.Target) && !isJump(at.Table, at.Chain, r.Target)
		}
		return x
	}
	if len(rules) == 0 {
		return heldChain{}
	}
	var h maphash.Hash
	h.SetSeed(seed)
	for _, r := range rules {
		h.WriteString(r.ID)
		h.WriteByte(0)
	}
	return heldChain{rules: len(rules), hash: h.Sum64()}
}

// read returns what the kernel holds in some chains of ours.
func (k *kernel) read(ctx context.Context, e *Engine, at map[netfilter.Place]int) (held, error) {
	const few = 200 // requests that cost less than to read whole tables
	if !k.nft || len(at) > few {
		return k.look(ctx, e)
	}
	out := make(held, len(at))
	for place := range at {
		rules, err := netfilter.NFTRules(netfilter.Family(e.IPv6), place)
		if err != nil {
			return nil, fmt.Errorf("list rules of chain %s of table %s: %w", place.Chain, place.Table, err)
		}
		out.set(place, keep(place, rules))
	}
	return out, nil
}

// look reads all that the kernel holds. It is one process with the legacy backend and
// none with nf_tables.
func (k *kernel) look(ctx context.Context, e *Engine) (held, error) {
	now := make(held)
	add := func(table string, chains map[string][]netfilter.Rule) {
		for name, rules := range chains {
			at := netfilter.Place{Table: table, Chain: name}
			if x := keep(at, rules); ours(table, name) {
				now.set(at, x)
			} else {
				now[at] = x
			}
		}
	}
	if k.nft {
		for _, t := range tables {
			chains, err := netfilter.NFTTable(netfilter.Family(e.IPv6), t.name, func(string) bool { return true })
			if err != nil {
				return nil, err
			}
			add(t.name, chains)
		}
		return now, nil
	}
	save, err := netfilter.Run(ctx, nil, k.path+"-save")
	if err != nil {
		return nil, err
	}
	for table, chains := range saved(string(save)) {
		add(table, chains)
	}
	return now, nil
}

// saved returns the rules in the output of iptables-save, by table and chain. The id of
// a rule is its text.
func saved(save string) map[string]map[string][]netfilter.Rule {
	out := make(map[string]map[string][]netfilter.Rule)
	table := ""
	for line := range strings.Lines(save) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
			out[table] = make(map[string][]netfilter.Rule)
		}
		rule, ok := strings.CutPrefix(line, "-A ")
		if !ok {
			continue
		}
		chain, _, _ := strings.Cut(rule, " ")
		target := ""
		if i := strings.LastIndex(rule, " -j "); i >= 0 {
			target, _, _ = strings.Cut(rule[i+len(" -j "):], " ")
		}
		out[table][chain] = append(out[table][chain], netfilter.Rule{ID: line, Target: target})
	}
	return out
}

// check reports what is not as it was just written.
func (h held) check(expect map[netfilter.Place]int) error {
	for _, at := range sortedPlaces(expect) {
		if have := h[at].rules; have != expect[at] {
			return fmt.Errorf("chain %s of table %s has %d rules right after %d were written: another program is changing it", at.Chain, at.Table, have, expect[at])
		}
	}
	return nil
}

// inPlace reports whether a chain of the kernel has our jumps, each once, and no other
// rule that leads to a chain of ours, and whether those that must be before the rules
// of others are.
func inPlace(at netfilter.Place, targets []string) bool {
	missing := make(map[string]bool)
	first := false
	for _, j := range jumps {
		if j.table == at.Table && j.from == at.Chain {
			missing[j.to], first = true, j.first
		}
	}
	for _, target := range targets {
		switch {
		case missing[target]:
			delete(missing, target)
		case ours(at.Table, target), first && len(missing) > 0 && !strings.HasPrefix(target, "SLUICE-"):
			return false
		}
	}
	return len(missing) == 0
}

// misplaced returns the input of iptables-restore that puts our jumps where they
// belong, nil if they are there. Those that are somewhere are moved within one
// transaction.
func misplaced(now held) []byte {
	var b strings.Builder
	done := make(map[netfilter.Place]bool)
	for _, j := range jumps {
		at := netfilter.Place{Table: j.table, Chain: j.from}
		targets := now[at].before
		if done[at] || inPlace(at, targets) {
			continue
		}
		done[at] = true
		fmt.Fprintf(&b, "*%s\n", at.Table)
		// By number, the last first: others may have written a jump in another way.
		for i := len(targets) - 1; i >= 0; i-- {
			if ours(at.Table, targets[i]) {
				fmt.Fprintf(&b, "-D %s %d\n", at.Chain, i+1)
			}
		}
		before := 0 // rules of package redirect, which stay first
		for _, target := range targets {
			if !strings.HasPrefix(target, "SLUICE-") {
				break
			}
			if !ours(at.Table, target) {
				before++
			}
		}
		for _, k := range jumps {
			if k.table == at.Table && k.from == at.Chain {
				before++
				fmt.Fprintf(&b, "-I %s %d %s\n", at.Chain, before, k.spec())
			}
		}
		b.WriteString("COMMIT\n")
	}
	return []byte(b.String())
}

func (k *kernel) verify(ctx context.Context, e *Engine) (bool, error) {
	if !k.used {
		return true, nil
	}
	if _, err := k.probe(ctx, e); err != nil {
		return false, err
	}
	if k.last == nil {
		return false, nil
	}
	var generation uint32
	if k.nft {
		if generation = netfilter.NFTGeneration(); generation != 0 && generation == k.verified {
			return true, nil
		}
	}
	now, err := k.look(ctx, e)
	if err != nil {
		return false, err
	}
	if !now.equal(k.held) {
		k.last = nil
		return false, nil
	}
	k.verified = generation
	return true, nil
}

// equal reports whether our chains hold the same rules, and the jumps to them are in
// place.
func (h held) equal(was held) bool {
	n := 0
	for at, x := range h {
		if !ours(at.Table, at.Chain) {
			if x.foreign {
				return false
			}
			continue
		}
		if y := was[at]; x.rules != y.rules || x.hash != y.hash {
			return false
		}
		n++
	}
	for at := range was {
		if ours(at.Table, at.Chain) {
			n--
		}
	}
	if n != 0 {
		return false
	}
	for _, j := range jumps {
		at := netfilter.Place{Table: j.table, Chain: j.from}
		if !inPlace(at, h[at].before) {
			return false
		}
	}
	return true
}
