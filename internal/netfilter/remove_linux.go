package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// Try makes the kernel take the ruleset, which has no jumps, and removes all of it at
// once. It is for finding out what rules a host takes; a ruleset for that has a prefix
// of its own.
func (r *Ruleset) Try(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, destroySets(ctx, r.layout)) }()
	for set := range r.layout.sets() {
		if err := set.Create(); err != nil {
			return err
		}
	}
	text, places := r.script(true)
	err = r.restore(ctx, text)
	// One table may have been written and the other not.
	for _, t := range r.layout.Tables {
		var e edits
		for _, at := range places {
			if at.Table == t.Name {
				e.heads, e.removed = append(e.heads, at.Chain), append(e.removed, at.Chain)
			}
		}
		if err2 := r.restore(ctx, e.text(t.Name)); err == nil {
			err = err2
		}
	}
	return err
}

// destroySets removes the sets of a layout, which no rule may match. Sets that are not
// there, and a kernel without sets, are no error.
func destroySets(ctx context.Context, l Layout) error {
	var errs []error
	for set := range l.sets() {
		errs = append(errs, set.Destroy(ctx))
	}
	return errors.Join(errs...)
}

// Remove removes every trace of a ruleset from both backends of iptables: chains, rules
// in others' chains that lead to them, sets, and tables of nf_tables that writing made,
// if no other program has put anything in them. A table of the legacy backend cannot be
// removed, and stays empty. saved, if not nil, is given what each backend held before. It
// goes on after an error, but leaves the sets, which rules may hold, and without which
// some callers would not find again what is theirs.
func Remove(ctx context.Context, l Layout, saved func(text string)) error {
	errs := []error{checkOrphans(l)}
	for _, command := range Backends(l.IPv6) {
		_, err := removeChains(ctx, command, l, saved)
		errs = append(errs, err)
	}
	for _, t := range l.Tables {
		errs = append(errs, removeMarkedTable(nfnl.Family(l.IPv6), t.Name, l.Prefix))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return destroySets(ctx, l)
}

// RemoveChains removes the chains of a layout, and the rules that lead to them, from both
// backends of iptables, and returns how many chains there were.
func RemoveChains(ctx context.Context, l Layout) (n int, err error) {
	for _, command := range Backends(l.IPv6) {
		removed, err2 := removeChains(ctx, command, l, nil)
		n, err = n+removed, errors.Join(err, err2)
	}
	return n, err
}

// removeChains is RemoveChains for one backend.
func removeChains(ctx context.Context, command string, l Layout, saved func(string)) (int, error) {
	nft := strings.HasSuffix(command, "-nft")
	if nft {
		// iptables-nft-save fails if it does not understand what another program has put
		// in a table, so it is asked only if there is something to remove.
		if there, err := l.inNFT(); err != nil || !there {
			return 0, err
		}
	}
	save, err := SavedBy(ctx, command+"-save")
	if err != nil {
		return 0, err
	}
	if saved != nil {
		saved(string(save))
	}
	text := Undo(save, l.Own)
	if text == nil {
		return 0, nil
	}
	if _, err := Run(ctx, text, command+"-restore", "--noflush", fmt.Sprintf("--wait=%d", LockWait)); err != nil {
		return 0, err
	}
	return bytes.Count(text, []byte("\n-X ")), nil
}

// inNFT reports whether nf_tables has any chain of a layout.
func (l *Layout) inNFT() (bool, error) {
	for _, t := range l.Tables {
		chains, err := nftChains(nfnl.Family(l.IPv6), t.Name)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(chains, func(c nftChain) bool { return l.Own(t.Name, c.Name) }) {
			return true, nil
		}
	}
	return false, nil
}
