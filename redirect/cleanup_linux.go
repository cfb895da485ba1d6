package redirect

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
)

func cleanup(ctx context.Context) error {
	if err := privileged(); err != nil {
		return err
	}
	return errors.Join(cleanupFamily(ctx, false), cleanupFamily(ctx, true))
}

func cleanupFamily(ctx context.Context, ipv6 bool) error {
	var errs []error
	changed := make(map[netip.AddrPort]bool)
	for _, command := range backends(ipv6) {
		save, err := rulesOf(ctx, command+"-save")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, f := range steeredUDP(strings.Split(string(save), "\n"), ipv6) {
			changed[f] = true
		}
		if script := undo(save, removable); script != nil {
			k := kernel{path: command}
			errs = append(errs, k.restore(ctx, shape{}, script))
		}
	}
	for _, t := range tables {
		errs = append(errs, removeMarkedTable(shape{ipv6: ipv6}.family(), t.name))
	}
	for _, prefix := range []string{chainPrefix, probePrefix} {
		errs = append(errs, shape{ipv6: ipv6, prefix: prefix}.destroySets(ctx))
	}
	if len(changed) > 0 {
		_, err := deleteFlows(flowFilter{changed: changed}, ipv6)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// backends returns the iptables programs that are installed, one per backend.
func backends(ipv6 bool) []string {
	family := "iptables"
	if ipv6 {
		family = "ip6tables"
	}
	var out []string
	for _, name := range []string{family + "-nft", family + "-legacy"} {
		if _, err := exec.LookPath(name); err == nil {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return []string{family} // from before 1.8 there is one backend and one name
	}
	return out
}
