package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/internal/flows"
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

// retireChains removes what a steerer by iptables, and kube-proxy's userspace mode, have left in a family. Where
// there is no iptables program, rules of any mode go from its nf_tables backend, and those of the legacy backend match
// nothing any more: their lease ends.
func retireChains(ctx context.Context, ipv6 bool) error {
	l := iptablesLayout(ipv6)
	l.Own = func(table, chain string) bool {
		return own(table, chain) || strings.HasPrefix(chain, probePrefix) || isOld(table, chain)
	}
	if err := netfilter.Retire(ctx, l, NewLease(ipv6, 0)); err != nil {
		return fmt.Errorf("remove what steering by iptables has left: %w", err)
	}
	return nil
}

// iptablesLayout is all that steering by iptables may have in a family, with what Probe may have left.
func iptablesLayout(ipv6 bool) netfilter.Layout {
	l := shape{ipv6: ipv6, prefix: chainPrefix, sets: true}.layout(nil)
	l.Sets = append(l.Sets, shape{ipv6: ipv6, prefix: probePrefix, sets: true}.layout(nil).Sets...)
	return l
}

func cleanup(ctx context.Context) error {
	return netfilter.EachFamily(func(ipv6 bool) error { return cleanupFamily(ctx, ipv6) })
}

func cleanupFamily(ctx context.Context, ipv6 bool) error {
	l := iptablesLayout(ipv6)
	l.Sets = append(l.Sets, netfilter.SetGroup{Sets: []netfilter.Set{NewLease(ipv6, 0).Set()}})
	l.Own = removable
	changed := make(map[netip.AddrPort]bool)
	note := func(steered map[lb.Frontend]uint16) {
		for f := range steered {
			if f.Protocol == lb.UDP {
				changed[f.Addr] = true
			}
		}
	}
	left, err := leftoverTable(ipv6)
	note(left.Ported)
	_, err2 := removeTable(ipv6)
	err = errors.Join(err, err2, netfilter.Remove(ctx, l, func(save string) {
		note(steeredBy(strings.Split(save, "\n"), ipv6))
	}))
	if len(changed) > 0 {
		err = errors.Join(err, flows.DeleteRedirected(ipv6, changed))
	}
	return err
}
