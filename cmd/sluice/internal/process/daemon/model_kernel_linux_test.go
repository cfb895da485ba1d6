package daemon

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/kernelmodes/iptables/trace"
	"github.com/sluice-lb/sluice/lb"
)

// The kernel's side of the comparison: what iptables-save prints, walked through by package
// trace, which must know every match and target, sets by netlink, and sockets from /proc. A
// program costs some 10 ms of processor time, of which each step could have more.

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
	var saves [2][]byte
	var errs [4]error
	var all sync.WaitGroup
	for i, program := range []string{"iptables-save", "ip6tables-save"} {
		all.Go(func() { saves[i], errs[i] = exec.Command(program).Output() })
	}
	errs[2], errs[3] = k.readSets(), k.readSockets()
	all.Wait()
	for family, save := range saves {
		errs[family] = errors.Join(errs[family], k.readRules(string(save), family))
	}
	return k, errors.Join(errs[:]...)
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

// readSets reads all sets.
func (k *kernel) readSets() error {
	sets, err := netlink.IpsetListAll()
	if err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	for _, set := range sets {
		if k.sets[set.SetName] == nil { // one that is large comes in parts
			k.sets[set.SetName] = kSet{}
		}
		for _, e := range set.Entries {
			var m lb.Frontend
			nets := networks(e.IP2, e.CIDR2)
			switch {
			case e.Port == nil: // hash:net
				nets = networks(e.IP, e.CIDR)
			case e.Protocol == nil: // bitmap:port
				m.Addr = netip.AddrPortFrom(netip.Addr{}, *e.Port)
				k.ports[*e.Port] = true
			default: // hash:ip,port and hash:ip,port,net
				ip, ok := netip.AddrFromSlice(e.IP)
				m = lb.Frontend{Protocol: protocolNumbers[*e.Protocol], Addr: netip.AddrPortFrom(ip, *e.Port)}
				if !ok || m.Protocol == 0 {
					return fmt.Errorf("cannot read member %+v of set %s", e, set.SetName)
				}
				k.mentioned[m] = true
			}
			k.sets[set.SetName][m] = append(k.sets[set.SetName][m], nets...)
		}
	}
	return nil
}

var protocolNumbers = map[uint8]lb.Protocol{syscall.IPPROTO_TCP: lb.TCP, syscall.IPPROTO_UDP: lb.UDP}

// networks returns the network of a member, if it has one. A single address has no length.
func networks(ip net.IP, bits uint8) []netip.Prefix {
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return nil
	}
	return []netip.Prefix{netip.PrefixFrom(addr, cmp.Or(int(bits), addr.BitLen()))}
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

// readSockets reads which sockets there are until two readings agree: the kernel writes a page at a time and goes on by
// number, so that a socket that comes or goes meanwhile hides another (seq_file of Linux).
func (k *kernel) readSockets() error {
	const readings = 100 // at most
	for range readings {
		was := k.sockets
		now, err := readSockets()
		if k.sockets = now; err != nil || maps.Equal(was, now) {
			return err
		}
	}
	return fmt.Errorf("read sockets: no two of %d readings agree", readings)
}

// readSockets reads which sockets listen, or would take datagrams from anybody, in lines such as
// "0: 0100007F:1B59 00000000:0000 07 ..." (proc_pid_net(5)), where words are in the order of the host.
func readSockets() (map[lb.Frontend]bool, error) {
	const listening, unconnected = "0A", "07"
	sockets := map[lb.Frontend]bool{}
	for file, state := range map[string]string{"tcp": listening, "udp": unconnected} {
		for _, family := range []string{"", "6"} {
			text, err := os.ReadFile("/proc/self/net/" + file + family)
			if err != nil {
				return nil, err
			}
			_, text, _ = bytes.Cut(text, []byte("\n")) // the heading
			for line := range strings.Lines(string(text)) {
				w := strings.Fields(line)
				if w[3] != state {
					continue
				}
				addr, err := parseSocket(w[1])
				if err != nil {
					return nil, fmt.Errorf("read socket %q: %w", line, err)
				}
				sockets[lb.Frontend{Protocol: protocolNames[file], Addr: addr}] = true
			}
		}
	}
	return sockets, nil
}

// parseSocket reads an address such as "0100007F:1B59".
func parseSocket(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	for i := 0; i+4 <= len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	ip, ok := netip.AddrFromSlice(b)
	if err = errors.Join(err, err2); err == nil && !ok {
		err = errors.New("no address")
	}
	return netip.AddrPortFrom(ip, uint16(n)), err
}
