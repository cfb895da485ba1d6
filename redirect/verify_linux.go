package redirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// held is all that the kernel holds in our chains, and in those with jumps to them.
type held map[netfilter.Place][]netfilter.Rule

// look reads what the kernel holds in our chains but the buckets, in those with jumps to
// them, and in buckets.
func (k *kernel) look(ctx context.Context, buckets []netfilter.Place) (held, error) {
	now := make(held)
	for _, j := range k.jumps {
		now[netfilter.Place{Table: j.table, Chain: j.from}] = nil
	}
	for _, t := range tables {
		for _, c := range t.chains {
			now[netfilter.Place{Table: t.name, Chain: k.shape.chain(c)}] = nil
		}
	}
	for _, at := range buckets {
		now[at] = nil
	}
	return now, netfilter.Look(ctx, k.path, k.nft, k.shape.ipv6, now)
}

// buckets returns where the buckets are that rules, as shape.render returns them, have.
func (s shape) buckets(rules []byte) (out []netfilter.Place) {
	for line := range strings.Lines(string(rules)) {
		if name, ok := strings.CutPrefix(line, ":"); ok && s.isBucket(name) {
			name, _, _ = strings.Cut(name, " ")
			out = append(out, netfilter.Place{Table: "nat", Chain: name})
		}
	}
	return out
}

// check reports what is not as it was just written.
func (h held) check(s shape, rules []byte, jumps []jump) error {
	for at, have := range h {
		want := bytes.Count(rules, []byte("\n-A "+at.Chain+" "))
		if strings.HasPrefix(at.Chain, s.prefix) && len(have) != want {
			return fmt.Errorf("chain %s of table %s has %d rules right after %d were written: another program is changing it", at.Chain, at.Table, len(have), want)
		}
	}
	for _, j := range jumps {
		if first := h[netfilter.Place{Table: j.table, Chain: j.from}]; len(first) == 0 || first[0].Target != s.chain(j.to) {
			return fmt.Errorf("chain %s of table %s does not begin with the jump that was just put there: another program is changing it", j.from, j.table)
		}
	}
	return nil
}

// with returns what is held when some chains have been read anew. A chain that is gone
// has no rules.
func (h held) with(now held) held {
	out := maps.Clone(h)
	if out == nil {
		out = make(held)
	}
	maps.Copy(out, now)
	return out
}

// equal reports whether our chains hold the same rules, and the chains with jumps
// to them begin with the same one.
func (h held) equal(was held, prefix string) bool {
	for at, rules := range was {
		now := h[at]
		if !strings.HasPrefix(at.Chain, prefix) {
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
	now, err := k.look(ctx, k.shape.buckets(k.rules))
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
