package netfilter

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"syscall"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// held is what the kernel holds: the chains of a ruleset, and of the chains of others
// those that a jump is in, or that lead to a chain of ours.
type held struct {
	own    map[Place]heldChain
	others map[Place][]Rule
}

// heldChain stands for the rules of a chain: they are as they were while their number
// and their hash are. A rule that is replaced by an equal one counts as another with
// nf_tables, which gives it another handle.
type heldChain struct {
	rules int
	hash  uint64
}

func hashRules(rules []Rule) heldChain {
	var h maphash.Hash
	h.SetSeed(idSeed)
	for _, r := range rules {
		h.WriteString(r.ID)
		h.WriteByte(0)
	}
	return heldChain{len(rules), h.Sum64()}
}

// take adds a chain that the kernel has.
func (h held) take(l *Layout, jumps []Jump, at Place, rules []Rule) {
	leads := func(r Rule) bool { return l.Own(at.Table, r.Target) }
	switch {
	case l.Own(at.Table, at.Chain):
		h.own[at] = hashRules(rules)
	case slices.ContainsFunc(jumps, func(j Jump) bool { return j.place() == at }), slices.ContainsFunc(rules, leads):
		h.others[at] = rules
	}
}

// look reads all that the kernel holds. It is one process with the legacy backend, and
// none with nf_tables.
func (r *Ruleset) look(ctx context.Context) (held, error) {
	now := held{make(map[Place]heldChain), make(map[Place][]Rule)}
	if !r.program.NFT {
		save, err := Run(ctx, nil, r.program.Path+"-save")
		if err != nil {
			return held{}, err
		}
		for at, rules := range savedRules(string(save), r.layout.Prefix) {
			now.take(&r.layout, r.jumps, at, rules)
		}
		return now, nil
	}
	family := nfnl.Family(r.layout.IPv6)
	for _, t := range r.layout.Tables {
		chains, err := nftChains(family, t.Name)
		if err != nil {
			return held{}, err
		}
		rules, err := nftRules(family, Place{Table: t.Name})
		if err != nil {
			return held{}, err
		}
		for _, c := range chains {
			now.take(&r.layout, r.jumps, Place{t.Name, c.Name}, rules[c.Name])
		}
	}
	return now, nil
}

// remember reads back the chains that were written, and those by which packets get there,
// and reports what is not as it was written.
func (r *Ruleset) remember(ctx context.Context, written []Place, whole bool) error {
	const few = 200 // requests that cost less than to read whole tables
	ours := make(map[Place]bool, len(written))
	for _, at := range written {
		ours[at] = true
	}
	var now held
	var err error
	if whole || r.moved || !r.program.NFT || len(written) > few {
		if now, err = r.look(ctx); err != nil {
			return err
		}
		for at, was := range r.held.own {
			if !whole && !ours[at] && now.own[at] != was {
				return changedBy(at)
			}
		}
	} else if now, err = r.readAgain(ours); err != nil {
		return err
	}
	for _, at := range written {
		if c := r.chains[at]; now.own[at].rules != len(c.rules) {
			return fmt.Errorf("%s has %d rules right after %d were written: another program is changing it", at,
				now.own[at].rules, len(c.rules))
		}
	}
	for _, j := range r.jumps {
		if at := j.place(); !r.layout.inPlace(at, now.others[at], jumpsAt(r.jumps, at)) {
			return fmt.Errorf("the jumps in %s are not in place: another program is changing them", at)
		}
	}
	r.held = now
	return nil
}

func changedBy(at Place) error {
	return fmt.Errorf("%s is not as it was written: another program has changed it", at)
}

// readAgain reads the chains that were written, the chains with jumps, those that these
// lead to, and those that lead to buckets. The others it takes for unchanged.
func (r *Ruleset) readAgain(written map[Place]bool) (held, error) {
	places := maps.Clone(written)
	for _, at := range r.spine {
		places[at] = true
	}
	for _, j := range r.jumps {
		places[j.place()], places[Place{j.Table, j.To}] = true, true
	}
	now := held{r.held.own, make(map[Place][]Rule)}
	for at := range places {
		rules, err := nftRules(nfnl.Family(r.layout.IPv6), at)
		if err != nil {
			return held{}, err
		}
		was := now.own[at]
		if now.take(&r.layout, r.jumps, at, rules[at.Chain]); now.own[at] != was && !written[at] {
			return held{}, changedBy(at)
		}
		if len(rules) == 0 && !r.Has(at) {
			delete(now.own, at)
		}
	}
	return now, nil
}

// Verify reports whether our chains, the jumps to them and the sets hold what the last
// Write wrote and nothing else, and whether each jump is in its place and no other rule
// leads to our chains. If not, the next Write reads what there is and writes everything.
// As long as no program has written to nf_tables, but this one to tables of its own, it only reads the sets.
func (r *Ruleset) Verify(ctx context.Context) (bool, error) {
	if r.state != known {
		return false, nil
	}
	if err := r.layout.Lease.grant(); err != nil { // another program may have flushed its set
		return false, err
	}
	intact, err := r.rulesIntact(ctx)
	if err == nil && intact {
		intact, err = r.setsIntact()
	}
	if err == nil && !intact {
		r.state = unknown
	}
	return intact, err
}

func (r *Ruleset) rulesIntact(ctx context.Context) (bool, error) {
	var generation uint32
	if r.program.NFT {
		alone := false
		if generation, alone = nfnl.Alone(r.verified); alone {
			return true, nil
		}
	}
	now, err := r.look(ctx)
	if err != nil || !maps.Equal(now.own, r.held.own) {
		return false, err
	}
	for at := range r.held.others {
		if now.others[at] == nil {
			return false, nil // it had a jump
		}
	}
	for at, rules := range now.others {
		if !r.intact(at, rules, jumpsAt(r.jumps, at)) {
			return false, nil
		}
	}
	r.verified = generation
	return true, nil
}

func (r *Ruleset) setsIntact() (bool, error) {
	for _, set := range r.layout.sets() {
		have, err := set.Read()
		if errors.Is(err, syscall.ENOENT) || err == nil && !r.members[set.Name].Match(have) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}
