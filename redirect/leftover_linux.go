package redirect

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

func (t *IPTables) leftover(ctx context.Context) Leftover {
	if t.find(ctx) != nil { // Probe returns the reason
		left, _ := leftoverTable(t.IPv6)
		return left
	}
	left, _ := t.read(ctx)
	return left
}

// leftoverRules finds out where rules of iptables lead.
func leftoverRules(rules []string, ipv6 bool) Leftover {
	left := Leftover{Ported: steeredBy(rules, ipv6)}
	for _, rule := range rules { // those of TCP have the same target
		w := netfilter.Words(rule)
		if _, target := destination(w); target != 0 && w[1] == chainPrefix+chainTCP {
			left.TCPPort = target
		}
	}
	return left
}

// steeringRules returns the rules of our chains in table nat that an iptables program has.
func steeringRules(ctx context.Context, program *netfilter.IPTables) ([]string, error) {
	return program.Rules(ctx, "nat", func(chain string) bool { return own("nat", chain) })
}

// anySteeringRules returns those of both backends of iptables, as far as their programs are installed.
func anySteeringRules(ctx context.Context, ipv6 bool) (rules []string, err error) {
	for _, name := range netfilter.Backends(ipv6) {
		program, openErr := netfilter.Open(ctx, name, ipv6)
		switch {
		case openErr != nil: // without it no rule can be read
		case program.NFT:
			more, err2 := steeringRules(ctx, program)
			rules, err = append(rules, more...), errors.Join(err, err2)
		default: // Rules would make a table that is not there
			save, err2 := netfilter.SavedBy(ctx, name+"-save")
			if errors.Is(err2, fs.ErrPermission) { // only root may read it
				continue
			}
			rules, err = append(rules, strings.Split(string(save), "\n")...), errors.Join(err, err2)
		}
	}
	return rules, err
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
