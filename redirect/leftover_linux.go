package redirect

import (
	"context"
	"maps"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// leftover reads the targets of the rules in our chains.
func (k *kernel) leftover(ctx context.Context) Leftover {
	left := Leftover{Ported: make(map[lb.Frontend]uint16)}
	if k.find(ctx) != nil {
		return left // Probe returns the reason
	}
	chains, err := k.program.Chains("nat")
	if err != nil {
		return left
	}
	for _, chain := range chains {
		if !strings.HasPrefix(chain, chainPrefix) {
			continue
		}
		rules, err := k.program.Rules(netfilter.Place{Table: "nat", Chain: chain})
		if err != nil {
			continue
		}
		maps.Copy(left.Ported, steeredBy(rules, k.IPv6))
		if chain != chainPrefix+chainTCP {
			continue
		}
		for _, rule := range rules { // all have the same target
			if left.TCPPort = targetPort(rule); left.TCPPort != 0 {
				break
			}
		}
	}
	return left
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
		addr := unspecified(ipv6)
		var port uint64
		for i := 2; i+1 < len(w); i++ {
			switch w[i] {
			case "-d":
				if p, err := netip.ParsePrefix(w[i+1]); err == nil {
					addr = p.Addr()
				}
			case "--dport":
				port, _ = strconv.ParseUint(w[i+1], 10, 16)
			}
		}
		if port == 0 {
			continue
		}
		f.Addr = netip.AddrPortFrom(addr, uint16(port))
		out[f] = targetPort(rule)
	}
	return out
}

// targetPort returns the port that a rule, as printed by iptables -S, sends packets to.
func targetPort(rule string) uint16 {
	w := netfilter.Words(rule)
	for i := 0; i+1 < len(w); i++ {
		switch w[i] {
		case "--to-ports":
			port, _ := strconv.ParseUint(w[i+1], 10, 16)
			return uint16(port)
		case "--to-destination":
			addr, _ := netip.ParseAddrPort(w[i+1])
			return addr.Port()
		}
	}
	return 0
}
