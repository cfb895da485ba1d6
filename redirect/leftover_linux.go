package redirect

import (
	"context"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// leftover reads the targets of the rules in our chains.
func (k *kernel) leftover(ctx context.Context, t *IPTables) Leftover {
	left := Leftover{Ported: make(map[lb.Frontend]uint16)}
	if k.find(ctx, t) != nil {
		return left // it is for Probe to say why
	}
	s := shape{ipv6: t.IPv6, prefix: chainPrefix}
	chains, err := k.chains("nat")
	if err != nil {
		return left
	}
	for _, chain := range chains {
		if !strings.HasPrefix(chain, s.prefix) {
			continue
		}
		rules, err := k.list("nat", chain)
		if err != nil {
			continue
		}
		for _, p := range portedBy(rules, k.shape.ipv6) {
			left.Ported[p.Frontend] = p.Port
		}
		if chain != s.chain(chainTCP) {
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

// portedBy returns the UDP and SCTP frontends that are steered by rules of ours, as
// printed by iptables -S or iptables-save, with the ports that they are steered to. A
// frontend of several rules comes several times.
func portedBy(rules []string, ipv6 bool) []Ported {
	var out []Ported
	for _, rule := range rules {
		w := netfilter.Words(rule)
		if len(w) < 2 || w[0] != "-A" {
			continue
		}
		f := lb.Frontend{Protocol: lb.UDP}
		switch s := (shape{prefix: chainPrefix}); {
		case w[1] == s.chain(chainUDP), s.isBucket(w[1]):
		case w[1] == s.chain(chainSCTP):
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
		out = append(out, Ported{f, targetPort(rule)})
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
