package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// oldChains are the chains of kube-proxy's removed userspace mode, by table. Those of its present modes belong to a
// program that may run: kernelmodes/kubeproxy removes them, where Sluice takes its place.
var oldChains = map[string][]string{
	"nat":    {"KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST", "KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST"},
	"filter": {"KUBE-NODEPORT-NON-LOCAL"},
}

// isOld reports whether a chain is one of them.
func isOld(table, chain string) bool { return slices.Contains(oldChains[table], chain) }

// removable reports whether Cleanup removes a chain: one of ours, of any version, or an
// old one.
func removable(table, chain string) bool {
	return strings.HasPrefix(chain, chainPrefix) && chain != netfilter.MarkChain(chainPrefix) || isOld(table, chain)
}

// removeOldMode removes the chains that kube-proxy's userspace mode has left in either
// backend, since the kernel obeys both. Those for node ports would take packets from the
// sockets that they are for.
func (t *IPTables) removeOldMode(ctx context.Context) error {
	l := t.shape.layout(nil)
	l.Own = isOld
	if _, err := netfilter.RemoveChains(ctx, l, nil); err != nil {
		return fmt.Errorf("remove chains of kube-proxy's userspace mode: %w", err)
	}
	return nil
}

func cleanup(ctx context.Context) error {
	return netfilter.EachFamily(func(ipv6 bool) error { return cleanupFamily(ctx, ipv6) })
}

func cleanupFamily(ctx context.Context, ipv6 bool) error {
	l := shape{ipv6: ipv6, prefix: chainPrefix, sets: true}.layout(nil)
	l.Sets = append(l.Sets, shape{ipv6: ipv6, prefix: probePrefix, sets: true}.layout(nil).Sets...)
	l.Sets = append(l.Sets, netfilter.SetGroup{Sets: []netfilter.Set{NewLease(ipv6, 0).Set()}})
	l.Own = removable
	changed := make(map[netip.AddrPort]bool)
	err := netfilter.Remove(ctx, l, func(save string) {
		for f := range steeredBy(strings.Split(save, "\n"), ipv6) {
			changed[f.Addr] = changed[f.Addr] || f.Protocol == lb.UDP
		}
	})
	if len(changed) > 0 {
		_, err2 := deleteFlows(flowFilter{changed: changed}, ipv6)
		err = errors.Join(err, err2)
	}
	return err
}
