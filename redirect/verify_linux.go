package redirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// place is a chain in a table.
type place struct{ table, chain string }

// heldRule is a rule as the kernel holds it. The id of a rule stays while the rule
// does, and no other rule of its chain has it: the handle that nf_tables gave it
// with a hash of its contents, which can be replaced, or the text that
// iptables-legacy-save prints.
type heldRule struct {
	id     string
	target string // the chain it leads to, if any
}

// held is all that the kernel holds in our chains, and in those with jumps to them.
type held map[place][]heldRule

// look reads what the kernel holds. It is one process with the legacy backend and
// none with nf_tables.
func (k *kernel) look(ctx context.Context) (held, error) {
	now := make(held)
	for _, j := range jumps {
		now[place{j.table, j.from}] = nil
	}
	for _, t := range tables {
		for _, c := range t.chains {
			now[place{t.name, k.shape.chain(c)}] = nil
		}
	}
	if !k.nft {
		return now, k.lookLegacy(ctx, now)
	}
	for at := range now {
		rules, err := nftRules(k.shape.family(), at)
		if err != nil {
			return nil, fmt.Errorf("list rules of chain %s of table %s: %w", at.chain, at.table, err)
		}
		now[at] = rules
	}
	return now, nil
}

// lookLegacy reads the chains that are keys of now.
func (k *kernel) lookLegacy(ctx context.Context, now held) error {
	save, err := run(ctx, nil, k.path+"-save")
	if err != nil {
		return err
	}
	var at place
	for line := range strings.Lines(string(save)) {
		line = strings.TrimSuffix(line, "\n")
		if table, ok := strings.CutPrefix(line, "*"); ok {
			at.table = table
		}
		rule, ok := strings.CutPrefix(line, "-A ")
		if !ok {
			continue
		}
		at.chain, _, _ = strings.Cut(rule, " ")
		if rules, ours := now[at]; ours {
			now[at] = append(rules, heldRule{line, ruleTarget(words(line))})
		}
	}
	return nil
}

// nftRules returns the rules of a chain, none if it does not exist.
func nftRules(family uint8, at place) ([]heldRule, error) {
	filter := attrString(attrString(nil, unix.NFTA_RULE_TABLE, at.table), unix.NFTA_RULE_CHAIN, at.chain)
	msgs, err := netfilterRequest(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, family, filter)
	if err != nil {
		return nil, err
	}
	var out []heldRule
	for _, m := range msgs {
		// Kernels before 4.15 do not filter.
		if unix.ByteSliceToString(m[unix.NFTA_RULE_TABLE]) == at.table && unix.ByteSliceToString(m[unix.NFTA_RULE_CHAIN]) == at.chain {
			out = append(out, nftRule(m[unix.NFTA_RULE_HANDLE], m[unix.NFTA_RULE_EXPRESSIONS]))
		}
	}
	return out, nil
}

// idSeed makes the hashes of this process.
var idSeed = maphash.MakeSeed()

// nftRule makes a rule of what nf_tables says of one. The expression named counter
// changes with each packet; that named immediate holds the verdict, and so the
// chain that the rule leads to.
func nftRule(handle, expressions []byte) heldRule {
	var h maphash.Hash
	h.SetSeed(idSeed)
	h.Write(handle)
	var rule heldRule
	eachAttr(expressions, func(_ uint16, expression []byte) {
		name := unix.ByteSliceToString(nested(expression, unix.NFTA_EXPR_NAME))
		if name == "counter" {
			return
		}
		h.Write(expression)
		if name == "immediate" {
			data := nested(nested(expression, unix.NFTA_EXPR_DATA), unix.NFTA_IMMEDIATE_DATA)
			chain := nested(nested(data, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN)
			rule.target = unix.ByteSliceToString(chain)
		}
	})
	rule.id = strconv.FormatUint(h.Sum64(), 16)
	return rule
}

// check reports what is not as it was just written.
func (h held) check(s shape, rules []byte) error {
	for at, have := range h {
		want := bytes.Count(rules, []byte("\n-A "+at.chain+" "))
		if strings.HasPrefix(at.chain, s.prefix) && len(have) != want {
			return fmt.Errorf("chain %s of table %s has %d rules right after %d were written: another program is changing it", at.chain, at.table, len(have), want)
		}
	}
	for _, j := range jumps {
		if first := h[place{j.table, j.from}]; len(first) == 0 || first[0].target != s.chain(j.to) {
			return fmt.Errorf("chain %s of table %s does not begin with the jump that was just put there: another program is changing it", j.from, j.table)
		}
	}
	return nil
}

// equal reports whether our chains hold the same rules, and the chains with jumps
// to them begin with the same one.
func (h held) equal(was held, prefix string) bool {
	for at, rules := range was {
		now := h[at]
		if !strings.HasPrefix(at.chain, prefix) {
			rules, now = rules[:1], now[:min(len(now), 1)]
		}
		if !slices.Equal(rules, now) {
			return false
		}
	}
	return true
}

// intact reports whether the kernel holds what the last Sync wrote.
func (k *kernel) intact(ctx context.Context) (bool, error) {
	now, err := k.look(ctx)
	if err != nil || !now.equal(k.held, k.shape.prefix) {
		return false, err
	}
	if !k.shape.sets {
		return true, nil
	}
	have, err := k.shape.readSets()
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	for _, name := range setOrder {
		if !slices.Equal(have[name], k.sets[name]) {
			return false, nil
		}
	}
	return true, nil
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
