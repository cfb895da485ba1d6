package redirect

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

func cleanup(ctx context.Context) error {
	if err := netfilter.Privileged(); err != nil {
		return err
	}
	return errors.Join(cleanupFamily(ctx, false), cleanupFamily(ctx, true))
}

func cleanupFamily(ctx context.Context, ipv6 bool) error {
	unseen := netfilter.Unseen(ipv6)
	errs := []error{unseen}
	changed := make(map[netip.AddrPort]bool)
	for _, command := range netfilter.Backends(ipv6) {
		save, err := netfilter.SavedBy(ctx, command+"-save")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, p := range portedBy(strings.Split(string(save), "\n"), ipv6) {
			if p.Frontend.Protocol == lb.UDP {
				changed[p.Frontend.Addr] = true
			}
		}
		if script := netfilter.Undo(save, removable); script != nil {
			k := kernel{path: command}
			errs = append(errs, k.restore(ctx, shape{}, script))
		}
	}
	for _, t := range tables {
		errs = append(errs, netfilter.RemoveMarkedTable(netfilter.Family(ipv6), t.name))
	}
	if unseen == nil { // else rules may hold the sets
		for _, prefix := range []string{chainPrefix, probePrefix} {
			errs = append(errs, shape{ipv6: ipv6, prefix: prefix}.destroySets(ctx))
		}
	}
	if len(changed) > 0 {
		_, err := deleteFlows(flowFilter{changed: changed}, ipv6)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
