package redirect

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// oldChains are the chains of kube-proxy's removed userspace mode, by table.
// KUBE-* chains of other modes belong to whoever runs them.
var oldChains = map[string][]string{
	"nat":    {"KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST", "KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST"},
	"filter": {"KUBE-NODEPORT-NON-LOCAL"},
}

// isOld reports whether a chain is one of them.
func isOld(table, chain string) bool { return slices.Contains(oldChains[table], chain) }

// removable reports whether Cleanup removes a chain. The mark goes later, with
// the table it marks.
func removable(table, chain string) bool {
	if chain == markChain {
		return false
	}
	return strings.HasPrefix(chain, chainPrefix) || isOld(table, chain)
}

// undo reads the output of iptables-save and returns the input of
// iptables-restore --noflush that removes the chains for which removable is true,
// and every rule that leads to one; nil if there is none. A rule is deleted by its
// own text as saved, so it does not matter who wrote it how.
func undo(save []byte, removable func(table, chain string) bool) []byte {
	var out bytes.Buffer
	var table string
	var jumps, chains []string
	for line := range strings.Lines(string(save)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table, jumps, chains = line[1:], nil, nil
		case strings.HasPrefix(line, ":"):
			if chain, _, _ := strings.Cut(line[1:], " "); removable(table, chain) {
				chains = append(chains, chain)
			}
		case strings.HasPrefix(line, "-A "):
			w := words(line)
			if len(w) > 1 && !removable(table, w[1]) && removable(table, ruleTarget(w)) {
				jumps = append(jumps, line[len("-A "):])
			}
		case line == "COMMIT" && len(jumps)+len(chains) > 0:
			fmt.Fprintf(&out, "*%s\n", table)
			for _, op := range []struct {
				verb  string
				specs []string
			}{{"-D", jumps}, {"-F", chains}, {"-X", chains}} {
				for _, spec := range op.specs {
					fmt.Fprintf(&out, "%s %s\n", op.verb, spec)
				}
			}
			out.WriteString("COMMIT\n")
		}
	}
	return out.Bytes()
}

// ruleTarget returns where a rule, split into words, jumps or goes to.
func ruleTarget(w []string) string {
	for i := 0; i+1 < len(w); i++ {
		if w[i] == "-j" || w[i] == "-g" {
			return w[i+1]
		}
	}
	return ""
}

// unspecified is the address of node ports.
func unspecified(ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// steeredUDP returns the UDP frontends that are steered by rules of ours, as
// printed by iptables -S or iptables-save.
func steeredUDP(rules []string, ipv6 bool) []netip.AddrPort {
	var out []netip.AddrPort
	for _, rule := range rules {
		w := words(rule)
		if len(w) < 2 || w[0] != "-A" || w[1] != chainPrefix+chainUDP {
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
		if port != 0 {
			out = append(out, netip.AddrPortFrom(addr, uint16(port)))
		}
	}
	return out
}

// words splits a rule as iptables-restore does: at spaces that are not within
// double quotes, where a backslash escapes the next character.
func words(line string) []string {
	var out []string
	var word strings.Builder
	in, quoted := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
		case c == '"':
			quoted = !quoted
			in = true
		case c == ' ' && !quoted:
			if in {
				out = append(out, word.String())
				word.Reset()
			}
			in = false
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if in {
		out = append(out, word.String())
	}
	return out
}
