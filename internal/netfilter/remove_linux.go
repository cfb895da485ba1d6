package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// Try makes the kernel take the ruleset, which has no jumps, and removes all of it at
// once. It is for finding out what rules a host takes; a ruleset for that has a prefix
// of its own.
func (r *Ruleset) Try(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, destroySets(ctx, r.layout)) }()
	for _, set := range r.layout.sets() {
		if err := set.Create(); err != nil {
			return err
		}
	}
	text, places := r.script(true)
	var removal []byte
	for _, t := range r.layout.Tables {
		var e edits
		for _, at := range places {
			if at.Table == t.Name {
				e.remove(at.Chain)
			}
		}
		removal = append(removal, e.text(t.Name)...)
	}
	// After all is written: a table that is written after another has lost chains waits for the kernel to free them.
	if err = r.restore(ctx, slices.Concat(text, removal)); err != nil && !errors.Is(err, ErrLocked) {
		for table := range bytes.SplitAfterSeq(removal, []byte("COMMIT\n")) {
			_ = r.restore(ctx, table) // one may have been written and the other not
		}
	}
	return err
}

// Rename changes the names of all chains, in rules too, so that Try can have its own.
func (r *Ruleset) Rename(names *strings.Replacer) {
	chains := r.chains
	r.chains = make(map[Place]*chain, len(chains))
	for at, c := range chains {
		at.Chain = names.Replace(at.Chain)
		r.chains[at] = &chain{gone: c.gone}
		for _, rule := range c.rules {
			r.chains[at].rules = append(r.chains[at].rules, names.Replace(rule))
		}
	}
}

// destroySets removes the sets of a layout, which no rule may match. Sets that are not
// there, and a kernel without sets, are no error.
func destroySets(ctx context.Context, l Layout) error {
	var errs []error
	for _, set := range l.sets() {
		errs = append(errs, set.Destroy(ctx))
	}
	return errors.Join(errs...)
}

// Remove removes every trace of a ruleset from both backends of iptables: chains, rules
// in others' chains that lead to them, sets, and tables of nf_tables that writing made,
// if no other program has put anything in them. A table of the legacy backend cannot be
// removed, and stays empty. saved, if not nil, is given what each backend held before, as far as its program is
// installed. It goes on after an error, but leaves the sets, which rules may hold, and without which
// some callers would not find again what is theirs.
func Remove(ctx context.Context, l Layout, saved func(text string)) error {
	_, err := removeChains(ctx, l, saved, false)
	if !canRun(Program(l.IPv6)+"-nft", l.IPv6) {
		_, err2 := l.removeNFT(l.Own)
		err = errors.Join(err, err2)
	}
	err = errors.Join(checkOrphans(l), err)
	for _, t := range l.Tables {
		err = errors.Join(err, removeMarkedTable(nfnl.Family(l.IPv6), t.Name, l.Prefix))
	}
	if err != nil {
		return err
	}
	return destroySets(ctx, l)
}

// Retire removes what a layout, without a lease, has in both backends of iptables, while other rulesets of its prefix
// may stay. Without any iptables program no ruleset of the prefix is in use: all that the nf_tables backend has of them
// is removed. Rules of the legacy backend cannot be removed without its program: they match nothing any more, as the
// lease of the prefix is ended, and stay with their sets.
func Retire(ctx context.Context, l Layout, lease *Lease) (err error) {
	if family := Program(l.IPv6); !canRun(family+"-nft", l.IPv6) {
		own := l.Own
		if _, none := exec.LookPath(family); none != nil {
			own = func(table, chain string) bool {
				return l.Own(table, chain) || strings.HasPrefix(chain, l.Prefix) && chain != MarkChain(l.Prefix)
			}
		}
		_, err = l.removeNFT(own)
	}
	_, err2 := removeChains(ctx, l, nil, true)
	err = errors.Join(err, err2)
	for _, t := range l.Tables {
		err = errors.Join(err, removeMarkedTable(nfnl.Family(l.IPv6), t.Name, l.Prefix))
	}
	if err != nil {
		return err
	}
	if checkOrphans(l) != nil { // they hold the sets
		return lease.end()
	}
	return errors.Join(destroySets(ctx, l), lease.remove())
}

// RemoveChains removes the chains of a layout, and the rules that lead to them, from both
// backends of iptables, and returns how many chains there were. saved is as in Remove. Other than root may not read the
// legacy backend (/proc/net/ip_tables_names), whatever its capabilities: then that backend is left out, as it is where
// its program is not installed.
func RemoveChains(ctx context.Context, l Layout, saved func(text string)) (n int, err error) {
	if !canRun(Program(l.IPv6)+"-nft", l.IPv6) {
		n, err = l.removeNFT(l.Own)
	}
	more, err2 := removeChains(ctx, l, saved, true)
	return n + more, errors.Join(err, err2)
}

// HasChains reports whether the nf_tables backend of iptables has a chain of a layout. It runs no program.
func HasChains(l Layout) (bool, error) {
	tables, err := l.nftHas(l.Own)
	return len(tables) > 0, err
}

// HasTable reports whether nf_tables has a table.
func HasTable(ipv6 bool, name string) (bool, error) {
	tables, err := nftTables(nfnl.Family(ipv6))
	return slices.Contains(tables, name), err
}

// removeChains is RemoveChains. readable: a legacy backend that may not be read is left out.
func removeChains(ctx context.Context, l Layout, saved func(text string), readable bool) (n int, err error) {
	for _, command := range Backends(l.IPv6) {
		if strings.HasSuffix(command, "-nft") {
			// iptables-nft-save fails if it does not understand what another program has put
			// in a table, so it is asked only if there is something to remove.
			if there, err2 := l.nftHas(l.Own); len(there) == 0 {
				err = errors.Join(err, err2)
				continue
			}
		}
		save, err2 := SavedBy(ctx, command+"-save")
		if readable && strings.HasSuffix(command, "-legacy") && errors.Is(err2, fs.ErrPermission) {
			continue
		}
		if err2 == nil && saved != nil {
			saved(string(save))
		}
		if text := Undo(save, l.Own); text != nil {
			_, err2 = Run(ctx, text, command+"-restore", "--noflush", fmt.Sprintf("--wait=%d", LockWait))
			n += bytes.Count(text, []byte("\n-X "))
		}
		err = errors.Join(err, err2)
	}
	return n, err
}
