package redirect

import (
	"context"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

func (t *IPTables) leftover(ctx context.Context) Leftover {
	_ = t.find(ctx) // Probe returns the reason
	left, _ := t.read(ctx)
	return left
}

// readLeftover reads where our rules lead, up to the first error: those of nftables, and if there are none those in
// the chains of an iptables program, which may be nil.
func readLeftover(ctx context.Context, program *netfilter.IPTables, ipv6 bool) (Leftover, error) {
	left, err := leftoverTable(ipv6)
	if err != nil || program == nil || left.TCPPort != 0 || len(left.Ported) > 0 {
		return left, err
	}
	rules, err := program.Rules(ctx, "nat", func(chain string) bool { return own("nat", chain) })
	left.Ported = steeredBy(rules, ipv6)
	for _, rule := range rules { // those of TCP have the same target
		w := netfilter.Words(rule)
		if _, target := destination(w); target != 0 && w[1] == chainPrefix+chainTCP {
			left.TCPPort = target
		}
	}
	return left, err
}

// steeredBy returns the UDP and SCTP frontends that rules of ours redirect, as printed by
// iptables -S or iptables-save, with the ports that they are redirected to.
func steeredBy(rules []string, ipv6 bool) map[lb.Frontend]uint16 {
	out := make(map[lb.Frontend]uint16)
	for _, rule := range rules {
		w := netfilter.Words(rule)
		if len(w) < 2 || w[0] != "-A" {
			continue
		}
		f := lb.Frontend{Protocol: lb.UDP}
		switch chain, _ := strings.CutPrefix(w[1], chainPrefix); {
		case chain == chainUDP, strings.HasPrefix(chain, chainUDP+"-"):
		case chain == chainSCTP:
			f.Protocol = lb.SCTP
		default:
			continue
		}
		var target uint16
		if f.Addr, target = destination(w); f.Addr.Port() == 0 {
			continue
		}
		if !f.Addr.Addr().IsValid() {
			f.Addr = netip.AddrPortFrom(netfilter.Unspecified(ipv6), f.Addr.Port())
		}
		out[f] = target
	}
	return out
}

// destination returns what packets ask for that the words of a rule match, and the port that
// it sends them to.
func destination(words []string) (from netip.AddrPort, target uint16) {
	port := func(s string) uint16 {
		n, _ := strconv.ParseUint(s, 10, 16)
		return uint16(n)
	}
	for i, value := range words[min(1, len(words)):] {
		switch words[i] {
		case "-d":
			prefix, _ := netip.ParsePrefix(value)
			from = netip.AddrPortFrom(prefix.Addr(), from.Port())
		case "--dport":
			from = netip.AddrPortFrom(from.Addr(), port(value))
		case "--to-ports":
			target = port(value)
		case "--to-destination":
			to, _ := netip.ParseAddrPort(value)
			target = to.Port()
		}
	}
	return from, target
}
