package balancer

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// What the scripts say, in the vocabulary of the package.

// services reads the lines of a table.
func (r *runner) services(lines []string) ([]lb.Service, lb.Node) {
	var services []lb.Service
	var node lb.Node
	for _, line := range lines {
		words := strings.Fields(line)
		args := parseArgs(words[1:])
		switch words[0] {
		case "node":
			node = r.node(args)
			continue
		case "service":
			services = append(services, r.service(args))
			continue
		}
		s := &services[len(services)-1]
		switch words[0] {
		case "address":
			s.Addresses = append(s.Addresses, r.address(args))
		case "backend":
			s.Backends = append(s.Backends, r.backend(args))
		default:
			r.t.Fatalf("line %d: unknown line %q", r.line, line)
		}
	}
	return services, node
}

func (r *runner) node(args args) lb.Node {
	n := lb.Node{PodCIDRs: r.prefixes(args.named["pods"])}
	for _, a := range args.plain {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	return n
}

func (r *runner) service(args args) lb.Service {
	var s lb.Service
	name, port, _ := strings.Cut(args.plain[0], ":")
	s.Port = port
	s.Namespace, s.Name, _ = strings.Cut(name, "/")
	s.Protocol = r.protocol(args.plain[1])
	s.IPv6 = slices.Contains(args.plain, "ipv6")
	s.AffinityTimeout = r.duration(args.named["affinity"])
	s.Policies = &lb.Policies{Scheduler: args.named["scheduler"]}
	return s
}

func (r *runner) address(args args) lb.Address {
	kinds := []string{"cluster", "node-port", "external", "load-balancer", "invalid"}
	a := lb.Address{
		Addr:    r.addr(args.plain[0]),
		Local:   slices.Contains(args.plain, "local"),
		Sources: r.prefixes(args.named["sources"]),
	}
	if s := args.named["kind"]; s != "" {
		a.Kind = lb.Kind(r.one(s, kinds))
	}
	return a
}

func (r *runner) backend(args args) lb.Backend {
	b := lb.Backend{Addr: r.addr(args.plain[0]), NodeHint: r.hint(args.named["hint-node"]), ZoneHint: r.hint(args.named["hint-zone"])}
	b.Ready, b.Serving = true, true
	weight, _ := strconv.ParseUint(args.named["weight"], 10, 16)
	b.Weight = uint16(weight)
	for _, word := range args.plain[1:] {
		switch word {
		case "ready":
		case "unready":
			b.Ready, b.Serving = false, false
		case "terminating":
			b.Ready, b.Terminating = false, true
		case "stopped":
			b.Ready, b.Serving, b.Terminating = false, false, true
		case "local":
			b.Local = true
		case "maintenance":
			b.Maintenance = true
		default:
			r.t.Fatalf("line %d: unknown condition %q", r.line, word)
		}
	}
	return b
}

func (r *runner) hint(s string) lb.Hint { return lb.Hint(r.one(s, []string{"", "here", "elsewhere"})) }

// one returns the position of s in a list.
func (r *runner) one(s string, of []string) int {
	i := slices.Index(of, s)
	if i < 0 {
		r.t.Fatalf("line %d: %q is not one of %q", r.line, s, of)
	}
	return i
}

// prefixes reads PREFIX,..., with "-" for the zero Prefix.
func (r *runner) prefixes(s string) []netip.Prefix {
	if s == "" {
		return nil
	}
	var all []netip.Prefix
	for text := range strings.SplitSeq(s, ",") {
		if text == "-" {
			all = append(all, netip.Prefix{})
			continue
		}
		all = append(all, parsed(r, text, netip.ParsePrefix))
	}
	return all
}

// addr reads ADDR:PORT, or "-" for the zero AddrPort.
func (r *runner) addr(s string) netip.AddrPort {
	if s == "-" {
		return netip.AddrPort{}
	}
	return parsed(r, s, netip.ParseAddrPort)
}

// parsed returns what s says, or ends the test.
func parsed[T any](r *runner, s string, parse func(string) (T, error)) T {
	v, err := parse(s)
	if err != nil {
		r.t.Fatalf("line %d: %v", r.line, err)
	}
	return v
}

func (r *runner) protocol(s string) lb.Protocol {
	for _, p := range []lb.Protocol{0, lb.TCP, lb.UDP, lb.SCTP} {
		if p.String() == s {
			return p
		}
	}
	r.t.Fatalf("line %d: unknown protocol %q", r.line, s)
	return 0
}

func (r *runner) duration(s string) int64 {
	if s == "" {
		return 0
	}
	return parsed(r, s, time.ParseDuration).Nanoseconds()
}

type args struct {
	plain []string
	named map[string]string
}

func parseArgs(words []string) args {
	a := args{named: map[string]string{}}
	for _, w := range words {
		if name, value, ok := strings.Cut(w, "="); ok {
			a.named[name] = value
		} else {
			a.plain = append(a.plain, w)
		}
	}
	return a
}
