package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
)

const (
	nftTable = "kube-proxy"
	device   = "kube-ipvs0" // a dummy with all service addresses

	chainMark = "KUBE-MARK-MASQ"
	chainPost = "KUBE-POSTROUTING"
)

// chains are those of kube-proxy alone, by table; names that end in a dash are prefixes.
var chains = map[string][]string{
	"nat": {
		"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-CANARY", "KUBE-SVC-", "KUBE-SVL-", "KUBE-FW-", "KUBE-EXT-",
		"KUBE-XLB-", "KUBE-SEP-", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-FIRE-WALL",
	},
	"filter": {
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL",
		"KUBE-PROXY-CANARY", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER",
		"KUBE-IPVS-OUT-FILTER",
	},
	"mangle": {"KUBE-PROXY-CANARY"},
}

// sets are ipvs', in IPv4; in IPv6 KUBE- is KUBE-6-.
var sets = []string{
	"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL", "KUBE-LOAD-BALANCER",
	"KUBE-LOAD-BALANCER-LOCAL", "KUBE-LOAD-BALANCER-FW", "KUBE-LOAD-BALANCER-SOURCE-IP",
	"KUBE-LOAD-BALANCER-SOURCE-CIDR",
	"KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-LOCAL-TCP", "KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-UDP",
	"KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-LOCAL-SCTP-HASH", "KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS",
}

// own reports whether a chain is of kube-proxy alone.
func own(table, chain string) bool {
	return slices.ContainsFunc(chains[table], func(name string) bool {
		return chain == name || strings.HasSuffix(name, "-") && strings.HasPrefix(chain, name)
	})
}

func written(families [2]bool) (bool, error) {
	for i, ipv6 := range []bool{false, true} {
		if !families[i] {
			continue
		}
		if there, err := netfilter.HasTable(ipv6, nftTable); there || err != nil {
			return there, err
		}
		if there, err := netfilter.HasChains(layout(ipv6, own)); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// layout is where kube-proxy has its chains.
func layout(ipv6 bool, own func(table, chain string) bool) netfilter.Layout {
	return netfilter.Layout{IPv6: ipv6, Prefix: "KUBE-", Own: own,
		Tables: []netfilter.Table{{Name: "nat"}, {Name: "filter"}, {Name: "mangle"}}}
}

func cleanup(ctx context.Context, families [2]bool, excluded []netip.Prefix) (r Removed, err error) {
	link, err := netlink.LinkByName(device)
	var none netlink.LinkNotFoundError
	hasDevice := err == nil
	if errors.As(err, &none) {
		err = nil
	}
	errs := []error{err}
	for i, ipv6 := range []bool{false, true} {
		if families[i] {
			errs = append(errs, r.family(ctx, ipv6, hasDevice, excluded))
		}
	}
	if err := errors.Join(errs...); err != nil || !hasDevice {
		return r, err
	}
	// The last: without it nothing would be known of the rest.
	if err := netlink.LinkDel(link); err != nil {
		return r, fmt.Errorf("delete %s: %w", device, err)
	}
	return r, nil
}

// family is cleanup of one address family; withIPVS: also of what ipvs needs.
func (r *Removed) family(ctx context.Context, ipv6, withIPVS bool, excluded []netip.Prefix) error {
	n, err := removeChains(ctx, ipv6)
	r.Chains += n
	there, err2 := nft.Remove(ipv6, nftTable)
	if there {
		r.Tables++
	}
	errs := []error{err, err2}
	if withIPVS {
		n, err := ipvs.RemoveOthers(ipv6, excluded)
		r.Servers += n
		errs = append(errs, err)
		for _, name := range sets {
			if ipv6 {
				name = strings.Replace(name, "KUBE-", "KUBE-6-", 1)
				name = name[:min(len(name), 31)] // as kube-proxy cuts it (ipset(8))
			}
			there, err := netfilter.Set{Name: name}.Remove(ctx)
			if there {
				r.Sets++
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeChains removes chains from both backends of iptables, and returns how many. Those that
// kubelet or others may need, too, go only with others of the same backend.
func removeChains(ctx context.Context, ipv6 bool) (int, error) {
	masquerades := false
	l := layout(ipv6, func(table, chain string) bool {
		return own(table, chain) || masquerades && table == "nat" && (chain == chainMark || chain == chainPost)
	})
	n, err := netfilter.RemoveChains(ctx, l, func(save string) { masquerades = unshared(save) })
	if err != nil {
		return n, fmt.Errorf("remove chains of kube-proxy: %w", err)
	}
	return n, nil
}

// unshared reports whether, by the output of iptables-save, kube-proxy has been here and no
// other program's chain leads to what it masquerades by.
func unshared(save string) bool {
	table, here := "", false
	for line := range strings.Lines(save) {
		words := netfilter.Words(strings.TrimSuffix(line, "\n"))
		switch {
		case len(words) == 0:
		case words[0][0] == '*':
			table = words[0][1:]
		case table != "nat":
		case words[0][0] == ':':
			here = here || own(table, words[0][1:])
		case words[0] == "-A" && netfilter.Target(words) == chainMark && !own(table, words[1]):
			return false
		}
	}
	return here
}
