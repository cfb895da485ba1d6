package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-lb/sluice/lb"
)

// The kernel's side of the comparison: what iptables-save and ipset save print, read
// into something that can be asked what becomes of a packet. It knows the matches
// and targets that are in use, and fails at any other.

// packet is the first packet of a connection or flow, on its way.
type packet struct {
	protocol lb.Protocol
	src      netip.Addr
	dst      netip.AddrPort
	lo       bool // it comes by the loopback interface
	changed  bool // nat has changed where it goes
}

// kRule is a rule: what a packet must be, and what comes of it then.
type kRule struct {
	matches []func(packet) bool
	target  string
	port    uint16 // of REDIRECT
	with    string // of REJECT
}

// kSet is an ipset; what its type does not have is zero.
type kSet struct {
	members map[kMember]bool
	nets    map[kMember][]netip.Prefix
}

type kMember struct {
	protocol lb.Protocol
	addr     netip.AddrPort
}

// kernel is what was read at one moment.
type kernel struct {
	local  func(netip.Addr) bool
	sets   map[string]kSet
	chains [2]map[string][]kRule // of IPv4 and IPv6, by "table chain"

	mentioned map[lb.Frontend]bool // that are in a rule or a set
	ports     map[uint16]bool      // that are in a set of ports, or in a rule
	sockets   map[lb.Frontend]bool // of this namespace, but for connected ones
}

// readKernel reads the network namespace that the test is in.
func readKernel(local func(netip.Addr) bool) (*kernel, error) {
	k := &kernel{local: local, sets: map[string]kSet{}, mentioned: map[lb.Frontend]bool{}, ports: map[uint16]bool{}}
	programs := []string{"iptables-save", "ip6tables-save", "ipset save", "ss -Hltun"}
	outputs, errs := make([][]byte, len(programs)), make([]error, len(programs))
	var all sync.WaitGroup
	for i, program := range programs {
		all.Go(func() {
			w := strings.Fields(program)
			outputs[i], errs[i] = exec.Command(w[0], w[1:]...).Output()
		})
	}
	all.Wait()
	for family := range k.chains {
		k.chains[family] = map[string][]kRule{}
		errs = append(errs, k.readRules(outputs[family], family))
	}
	return k, errors.Join(append(errs, k.readSets(outputs[2]), k.readSockets(outputs[3]))...)
}

var loopback = [2]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}

var protocolNames = map[string]lb.Protocol{"tcp": lb.TCP, "udp": lb.UDP}

// readSets reads lines such as "add SLUICE4-TCP 10.96.0.1,tcp:80".
func (k *kernel) readSets(save []byte) error {
	for line := range strings.Lines(string(save)) {
		w := strings.Fields(line)
		set := k.sets[w[1]]
		if w[0] == "create" {
			k.sets[w[1]] = kSet{map[kMember]bool{}, map[kMember][]netip.Prefix{}}
			continue
		}
		var m kMember
		parts := strings.Split(w[2], ",")
		if port, err := strconv.ParseUint(w[2], 10, 16); err == nil { // bitmap:port
			m.addr = netip.AddrPortFrom(netip.Addr{}, uint16(port))
			set.members[m], k.ports[uint16(port)] = true, true
			continue
		}
		if len(parts) == 1 { // hash:net
			p, err := parseNet(w[2])
			if err != nil {
				return err
			}
			set.nets[m] = append(set.nets[m], p)
			continue
		}
		ip, err := netip.ParseAddr(parts[0])
		name, number, _ := strings.Cut(parts[1], ":")
		port, err2 := strconv.ParseUint(number, 10, 16)
		m = kMember{protocolNames[name], netip.AddrPortFrom(ip, uint16(port))}
		if err != nil || err2 != nil || m.protocol == 0 {
			return fmt.Errorf("cannot read member %q of set %s", w[2], w[1])
		}
		k.mentioned[lb.Frontend{Protocol: m.protocol, Addr: m.addr}] = true
		set.members[m] = true
		if len(parts) == 3 {
			p, err := parseNet(parts[2])
			if err != nil {
				return err
			}
			set.nets[m] = append(set.nets[m], p)
		}
	}
	return nil
}

// parseNet reads a prefix; one of a single address is printed without its length.
func parseNet(text string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	return netip.ParsePrefix(text)
}

// parseMask reads bits of an address that need not be its first, such as 0.0.0.5/0.0.0.31,
// which divides frontends by their last.
func parseMask(text string) (value, mask netip.Addr, ok bool) {
	first, second, _ := strings.Cut(text, "/")
	value, err := netip.ParseAddr(first)
	mask, err2 := netip.ParseAddr(second)
	return value, mask, err == nil && err2 == nil
}

// masked returns the bits of an address that a mask has; none of another family.
func masked(a, mask netip.Addr) netip.Addr {
	bits, m := a.AsSlice(), mask.AsSlice()
	for i := range min(len(bits), len(m)) {
		bits[i] &= m[i]
	}
	out, _ := netip.AddrFromSlice(bits)
	return out
}

var ruleWords = regexp.MustCompile(`"[^"]*"|\S+`)

func (k *kernel) readRules(save []byte, family int) error {
	table := ""
	for line := range strings.Lines(string(save)) {
		if strings.HasPrefix(line, "*") {
			table = strings.TrimSpace(line[1:])
		}
		if !strings.HasPrefix(line, "-A ") {
			continue
		}
		w := ruleWords.FindAllString(line, -1)
		rule, err := k.readRule(w[2:])
		if err != nil {
			return fmt.Errorf("read rule %q: %w", strings.TrimSpace(line), err)
		}
		at := table + " " + w[1]
		k.chains[family][at] = append(k.chains[family][at], rule)
	}
	return nil
}

// readRule reads the words of a rule after its chain.
func (k *kernel) readRule(w []string) (r kRule, err error) {
	var exact lb.Frontend // that the rule is about, if it is
	for i := 0; i < len(w); i++ {
		not := w[i] == "!"
		if not {
			i++
		}
		option, value := w[i], ""
		if i+1 < len(w) {
			value = w[i+1]
		}
		match := func(is func(packet) bool) {
			r.matches = append(r.matches, func(p packet) bool { return is(p) != not })
		}
		switch option {
		case "-m": // what follows says it all, but for the set that may be negated
			if value == "set" && w[i+2] == "!" {
				i, not = i+1, true
			}
			if value == "set" {
				set, dirs := w[i+3], w[i+4]
				match(func(p packet) bool { return k.has(set, dirs, p) })
				i += 3
			}
		case "-p":
			protocol, ok := protocolNames[value]
			exact.Protocol = protocol
			match(func(p packet) bool { return ok && p.protocol == protocol })
		case "-i":
			match(func(p packet) bool { return value == "lo" && p.lo })
		case "-s", "-d":
			if value, mask, ok := parseMask(value); ok && option == "-d" {
				match(func(p packet) bool { return masked(p.dst.Addr(), mask) == value })
				break
			}
			prefix, err := parseNet(value)
			if err != nil {
				return r, err
			}
			if option == "-s" {
				match(func(p packet) bool { return prefix.Contains(p.src) })
				break
			}
			exact.Addr = netip.AddrPortFrom(prefix.Addr(), exact.Addr.Port())
			match(func(p packet) bool { return prefix.Contains(p.dst.Addr()) })
		case "--dport", "--dports":
			var ports []uint16
			for _, s := range strings.Split(value, ",") {
				port, err := strconv.ParseUint(s, 10, 16)
				if err != nil {
					return r, err
				}
				ports = append(ports, uint16(port))
				k.ports[uint16(port)] = true
			}
			exact.Addr = netip.AddrPortFrom(exact.Addr.Addr(), ports[0])
			match(func(p packet) bool { return slices.Contains(ports, p.dst.Port()) })
		case "--dst-type":
			match(func(p packet) bool { return value == "LOCAL" && k.local(p.dst.Addr()) })
		case "--ctstate":
			match(func(p packet) bool { return value == "NEW" || value == "DNAT" && p.changed })
		case "-j":
			r.target = value
		case "--to-ports":
			port, err := strconv.ParseUint(value, 10, 16)
			if err != nil {
				return r, err
			}
			r.port = uint16(port)
		case "--reject-with":
			r.with = value
		case "--comment":
		default:
			return r, fmt.Errorf("%s is not known to the test", option)
		}
		i++
	}
	if exact.Addr.Addr().IsValid() {
		k.mentioned[exact] = true
	}
	return r, nil
}

// has reports whether a packet is in a set. A bitmap has no protocol.
func (k *kernel) has(name, dirs string, p packet) bool {
	set := k.sets[name]
	contains := func(of kMember, ip netip.Addr) bool {
		return slices.ContainsFunc(set.nets[of], func(n netip.Prefix) bool { return n.Contains(ip) })
	}
	switch dirs {
	case "dst":
		return set.members[kMember{addr: netip.AddrPortFrom(netip.Addr{}, p.dst.Port())}]
	case "src":
		return contains(kMember{}, p.src)
	case "dst,dst":
		return set.members[kMember{p.protocol, p.dst}]
	case "dst,dst,src":
		return contains(kMember{p.protocol, p.dst}, p.src)
	}
	panic("a set is matched with " + dirs)
}

// walk sends a packet through a chain. It returns the rule that decides, or one
// without a target if none does.
func (k *kernel) walk(table, chain string, p packet) kRule {
rules:
	for _, r := range k.chains[index(p.src.Is6())][table+" "+chain] {
		for _, matches := range r.matches {
			if !matches(p) {
				continue rules
			}
		}
		switch r.target {
		case "RETURN":
			return kRule{}
		case "ACCEPT", "DROP", "REJECT", "REDIRECT":
			return r
		}
		if inner := k.walk(table, r.target, p); inner.target != "" {
			return inner
		}
	}
	return kRule{}
}

// steeredTo returns the port that the nat table sends those to who ask at a
// frontend, 0 if it does not.
func (k *kernel) steeredTo(f lb.Frontend) uint16 {
	return k.walk("nat", "PREROUTING", packet{protocol: f.Protocol, src: aStranger.ips[index(f.Addr.Addr().Is6())], dst: f.Addr}).port
}

// fate returns what becomes of the first packet of a client. The order of the
// tables is that of netfilter; what the node sends to itself comes in again on
// loopback.
func (k *kernel) fate(protocol lb.Protocol, src netip.Addr, dst netip.AddrPort, fromNode bool) string {
	p := packet{protocol: protocol, src: src, dst: dst}
	hooks := []string{"mangle PREROUTING", "nat PREROUTING", "filter FORWARD"}
	if fromNode {
		hooks = []string{"mangle OUTPUT", "nat OUTPUT", "filter OUTPUT"}
	}
	accepted := false
	for i := 0; i < len(hooks); i++ {
		if hooks[i] == "filter FORWARD" && k.local(p.dst.Addr()) {
			hooks[i] = "filter INPUT"
		}
		table, chain, _ := strings.Cut(hooks[i], " ")
		switch r := k.walk(table, chain, p); r.target {
		case "DROP":
			return dropped
		case "REJECT":
			if r.with != "tcp-reset" && protocol == lb.TCP || !strings.HasSuffix(r.with, "-port-unreachable") && protocol == lb.UDP {
				return "refused with " + r.with
			}
			return refused
		case "REDIRECT":
			p.changed = true
			p.dst = netip.AddrPortFrom(loopback[index(src.Is6())], r.port) // or another address of the node
		case "ACCEPT":
			accepted = accepted || hooks[i] == "filter INPUT"
		}
		if hooks[i] == "filter OUTPUT" && k.local(p.dst.Addr()) {
			p.lo = true
			hooks = append(hooks, "mangle PREROUTING", "filter INPUT")
		}
	}
	switch {
	case p.changed && accepted:
		return steered
	case p.changed:
		return "steered, but not accepted"
	case accepted:
		return held
	}
	return untouched
}

// readSockets reads what ss prints of sockets that listen, or would take datagrams
// from anybody, such as "udp UNCONN 0 0 127.0.0.1:7001 0.0.0.0:*".
func (k *kernel) readSockets(text []byte) error {
	k.sockets = map[lb.Frontend]bool{}
	for line := range strings.Lines(string(text)) {
		w := strings.Fields(line)
		addr, err := netip.ParseAddrPort(w[4])
		if err != nil {
			return fmt.Errorf("read socket %q: %w", line, err)
		}
		k.sockets[lb.Frontend{Protocol: protocolNames[w[0]], Addr: addr}] = true
	}
	return nil
}
