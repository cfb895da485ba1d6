package redirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// removeOldMode removes, once, the chains that kube-proxy's userspace mode has left in
// either backend, since the kernel obeys both. Those for node ports would take
// packets from the sockets that they are for.
func (t *IPTables) removeOldMode(ctx context.Context) error {
	k := &t.kernel
	if k.oldGone {
		return nil
	}
	var errs []error
	for _, command := range netfilter.Backends(t.IPv6) {
		// Where backends have no names of their own there is only ours.
		nft := strings.HasSuffix(command, "-nft") || k.nft && !strings.HasSuffix(command, "-legacy")
		n, err := removeOld(ctx, command, nft, netfilter.Family(k.shape.ipv6))
		t.oldChains.Add(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove chains of kube-proxy's userspace mode: %w", err))
		}
	}
	k.oldGone = len(errs) == 0
	return errors.Join(errs...)
}

// removeOld returns the number of chains it removed.
func removeOld(ctx context.Context, command string, nft bool, family uint8) (uint64, error) {
	if nft {
		// iptables-nft-save fails if it does not understand what another program has
		// put in a table, so it is asked only if there is something to remove.
		if there, err := nftHasOld(family); err != nil || !there {
			return 0, err
		}
	}
	save, err := netfilter.SavedBy(ctx, command+"-save")
	if err != nil {
		return 0, err
	}
	script := netfilter.Undo(save, isOld)
	if script == nil {
		return 0, nil
	}
	k := kernel{path: command}
	if err := k.restore(ctx, shape{}, script); err != nil {
		return 0, err
	}
	return uint64(bytes.Count(script, []byte("\n-X "))), nil
}

// nftHasOld reports whether any of the chains is in a table of nf_tables.
func nftHasOld(family uint8) (bool, error) {
	for table := range oldChains {
		chains, err := netfilter.NFTChains(family, table)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(chains, func(c netfilter.NFTChain) bool { return isOld(table, c.Name) }) {
			return true, nil
		}
	}
	return false, nil
}
