package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/kernelmodes/iptables/trace"
	"github.com/sluice-lb/sluice/lb"
)

// The kernel's side of the comparison: what iptables-save and ipset save print, walked
// through by package trace, which must know every match and target.

// kSet is an ipset: its members, with the networks of those that have any. What its type
// does not have is zero.
type kSet map[lb.Frontend][]netip.Prefix

// kernel is what was read at one moment.
type kernel struct {
	node  trace.Node
	sets  map[string]kSet
	rules [2]*trace.Rules // of IPv4 and IPv6
	nat   [2]*trace.Rules // nothing but the nat table

	mentioned map[lb.Frontend]bool // that are in a rule or a set
	ports     map[uint16]bool      // that are in a set of ports, or in a rule
	sockets   map[lb.Frontend]bool // of this namespace, but for connected ones
}

// readKernel reads the network namespace that the test is in, which has some addresses.
func readKernel(local []netip.Addr) (*kernel, error) {
	k := &kernel{sets: map[string]kSet{}, mentioned: map[lb.Frontend]bool{}, ports: map[uint16]bool{}}
	k.node = trace.Node{Addresses: local, InSet: k.has}
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
	for family := range k.rules {
		errs = append(errs, k.readRules(string(outputs[family]), family))
	}
	return k, errors.Join(append(errs, k.readSets(outputs[2]), k.readSockets(outputs[3]))...)
}

// readRules reads the output of iptables-save. A policy is added to INPUT, by which a packet
// that no rule accepts is known.
func (k *kernel) readRules(save string, family int) (err error) {
	const policy = "*filter\n:INPUT DROP [0:0]\n"
	if k.rules[family], err = trace.Parse(policy + strings.ReplaceAll(save, ":INPUT ACCEPT", ":INPUT DROP")); err != nil {
		return err
	}
	_, nat, _ := strings.Cut(save, "*nat\n")
	nat, _, _ = strings.Cut(nat, "COMMIT\n")
	if k.nat[family], err = trace.Parse("*nat\n" + nat); err != nil {
		return err
	}
	for line := range strings.Lines(save) {
		k.mention(netfilter.Words(strings.TrimSpace(line)))
	}
	delete(k.ports, 0)
	return nil
}

// mention notes what a rule matches of where packets go to.
func (k *kernel) mention(words []string) {
	var protocol lb.Protocol
	var addr netip.Addr
	ports := "0"
	for i := 1; i+1 < len(words); i++ {
		switch value := words[i+1]; {
		case words[i-1] == "!":
		case words[i] == "-p":
			protocol = protocolNames[value]
		case words[i] == "-d":
			if p, err := netip.ParsePrefix(value); err == nil && p.IsSingleIP() {
				addr = p.Addr()
			}
		case words[i] == "--dport", words[i] == "--dports":
			ports = value
		}
	}
	for text := range strings.SplitSeq(ports, ",") {
		port, _ := strconv.ParseUint(text, 10, 16) // a range is none
		if k.ports[uint16(port)] = true; addr.IsValid() {
			k.mentioned[lb.Frontend{Protocol: protocol, Addr: netip.AddrPortFrom(addr, uint16(port))}] = true
		}
	}
}

var loopback = [2]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}

var protocolNames = map[string]lb.Protocol{"tcp": lb.TCP, "udp": lb.UDP}

// readSets reads lines such as "add SLUICE4-TCP 10.96.0.1,tcp:80".
func (k *kernel) readSets(save []byte) error {
	for line := range strings.Lines(string(save)) {
		w := strings.Fields(line)
		if w[0] == "create" {
			k.sets[w[1]] = kSet{}
			continue
		}
		var m lb.Frontend
		var nets []netip.Prefix
		parts := strings.Split(w[2], ",")
		if port, err := strconv.ParseUint(w[2], 10, 16); err == nil { // bitmap:port
			m.Addr = netip.AddrPortFrom(netip.Addr{}, uint16(port))
			k.ports[uint16(port)], parts = true, nil
		} else if len(parts) > 1 {
			name, port, _ := strings.Cut(parts[1], ":")
			addr, err := netip.ParseAddrPort(net.JoinHostPort(parts[0], port))
			if m = (lb.Frontend{Protocol: protocolNames[name], Addr: addr}); err != nil || m.Protocol == 0 {
				return fmt.Errorf("cannot read member %q of set %s", w[2], w[1])
			}
			k.mentioned[m], parts = true, parts[2:]
		}
		for _, part := range parts {
			p, err := parseNet(part)
			if err != nil {
				return err
			}
			nets = append(nets, p)
		}
		k.sets[w[1]][m] = append(k.sets[w[1]][m], nets...)
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

// has reports whether a packet is in a set. A bitmap has no protocol.
func (k *kernel) has(name, dirs string, p trace.Packet) bool {
	m := lb.Frontend{Protocol: protocolNames[p.Protocol], Addr: p.Dst}
	switch {
	case dirs == "dst":
		m = lb.Frontend{Addr: netip.AddrPortFrom(netip.Addr{}, p.Dst.Port())}
	case dirs == "src":
		m = lb.Frontend{}
	case !strings.HasPrefix(dirs, "dst,dst"):
		panic("a set is matched with " + dirs)
	}
	nets, ok := k.sets[name][m]
	if strings.HasSuffix(dirs, "src") {
		return slices.ContainsFunc(nets, func(n netip.Prefix) bool { return n.Contains(p.Src.Addr()) })
	}
	return ok
}

// outcome returns what becomes of the first packet of a client.
func (k *kernel) outcome(rules [2]*trace.Rules, f lb.Frontend, src netip.Addr, fromNode bool) trace.Outcome {
	p := trace.Packet{Protocol: strings.ToLower(f.Protocol.String()), Src: netip.AddrPortFrom(src, 40000), Dst: f.Addr, In: "eth0"}
	if fromNode {
		p.In = ""
	}
	all := rules[index(src.Is6())].Trace(k.node, p)
	if len(all) != 1 || len(all[0].Notes) > 0 {
		panic(fmt.Sprintf("%s, asked by %s: %v", f, src, all))
	}
	return all[0]
}

// steeredTo returns the port that the nat table sends clients of a frontend to, 0 if it
// does not.
func (k *kernel) steeredTo(f lb.Frontend) uint16 {
	o := k.outcome(k.nat, f, aStranger.ips[index(f.Addr.Addr().Is6())], false)
	if o.Dst == f.Addr {
		return 0
	}
	return o.Dst.Port()
}

// fate returns what becomes of the first packet of a client.
func (k *kernel) fate(protocol lb.Protocol, src netip.Addr, dst netip.AddrPort, fromNode bool) string {
	o := k.outcome(k.rules, lb.Frontend{Protocol: protocol, Addr: dst}, src, fromNode)
	changed := o.Dst != dst
	switch unaccepted := o.Fate == trace.Drop && o.Steps[len(o.Steps)-1] == "filter: policy of INPUT"; {
	case o.Fate == trace.Reject:
		if o.With != "tcp-reset" && protocol == lb.TCP || !strings.HasSuffix(o.With, "-port-unreachable") && protocol == lb.UDP {
			return "refused with " + o.With
		}
		return refused
	case unaccepted && changed, o.Fate == trace.Forward && changed:
		return "steered, but not accepted"
	case unaccepted, o.Fate == trace.Forward:
		return untouched
	case o.Fate == trace.Drop:
		return dropped
	case changed:
		return steered
	}
	return held
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
