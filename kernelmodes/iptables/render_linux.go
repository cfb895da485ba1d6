package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/kernelmodes/iptables/trace"
	"github.com/sluice-lb/sluice/lb"
)

// shape is how rules are written on this host, for this node.
type shape struct {
	ipv6        bool
	mark        uint32
	all         bool // masquerade all connections to cluster IPs
	liberal     bool
	randomFully bool
	bpf         bool     // endpoints that get themselves are found by comparing addresses
	noLocalhost bool     // node ports are refused on loopback
	local       []string // matches for the traffic of pods; none: not known
}

func nat(chain string) netfilter.Place { return netfilter.Place{Table: "nat", Chain: chain} }

// entry is a rule in a bucket.
type entry struct {
	netfilter.Bucket
	rule string
}

// unit is all that is written for one Service. It is not changed once made.
type unit struct {
	service *lb.Service
	chains  map[string][]string // of nat, with their rules, each without -A and the chain's name
	entries []entry
}

func (u *unit) of() *lb.Service { return u.service }

// comment is a match that names what a rule is for. A rule's comment has at most 255
// characters (xt_comment), and a Service's names at most 141.
func comment(format string, args ...any) string {
	return fmt.Sprintf("-m comment --comment %q ", fmt.Sprintf(format, args...))
}

// render returns what one Service needs.
//
// An address leads to the chain SVC or SVL, which choose a backend, or through EXT, which
// distinguishes where clients are, and FW, which checks their addresses. A packet that leaves
// them without a backend keeps its destination, and meets the entries of the filter table.
func (s shape) render(service *lb.Service) *unit {
	u := &unit{service: service, chains: make(map[string][]string)}
	cluster, local := service.Eligible(), service.EligibleLocal()
	name := kernelmodes.Suffix(service.ID, "")
	svc, svl, ext, fw := prefixCluster+name, prefixLocal+name, prefixExternal+name, prefixSources+name
	used := make(map[string]bool)      // chains
	marks := make(map[string][]string) // rules before the choice, by chain
	var extLocal bool

	for _, a := range service.Addresses {
		if a.Kind == lb.NodePort && a.Addr.Addr().IsLoopback() {
			continue
		}
		f := lb.Frontend{Protocol: service.Protocol, Addr: a.Addr}
		to := netfilter.ToFrontend(f) // of a node port, in a chain that only packets to this node reach
		inside, outside := service.Verdicts(a)
		s.unserved(u, service.ID, f, a, inside, outside)
		if inside != lb.Serve && outside != lb.Serve {
			continue
		}
		if a.Kind == lb.NodePort && service.Protocol == lb.UDP {
			u.entries = append(u.entries, s.stale(service.ID, a.Addr))
		}
		target := ext
		if a.Kind == lb.ClusterIP {
			if target = svc; a.Local {
				target = svl
			}
			who, mark := "%s cluster IP from elsewhere", chainOutside
			if service.Masquerade {
				who, mark = "%s cluster IP", chainMark
			}
			marks[target] = append(marks[target], to+" "+comment(who, service.ID)+"-j "+mark)
		} else {
			extLocal = extLocal || a.Local
		}
		used[target] = true
		if len(a.Sources) > 0 {
			chain, rules := fw, []string(nil)
			if len(u.chains) > 0 {
				chain = fmt.Sprint(fw, len(u.chains)) // addresses may differ in their ranges
			}
			for _, p := range kernelmodes.OfFamily(a.Sources, s.ipv6) {
				rules = append(rules, "-s "+p.String()+" "+comment("%s source range", service.ID)+"-j "+target)
			}
			for other, same := range u.chains {
				if slices.Equal(same, rules) {
					chain = other
				}
			}
			u.chains[chain], target = rules, chain
		}
		u.entries = append(u.entries, entry{bucketOf("nat", chainAddresses, chainNodePorts, f),
			to + " " + comment("%s %s", service.ID, a.Kind) + "-j " + target})
	}
	if used[ext] {
		used[svc], used[svl] = true, used[svl] || extLocal && len(local) > 0
		u.chains[ext] = s.external(service.ID, extLocal, used[svl], svc, svl)
	}
	for name, backends := range map[string][]lb.Backend{svc: cluster, svl: local} {
		if used[name] {
			u.chains[name] = s.spread(service, marks[name], backends)
		}
	}
	return u
}

// unserved adds what becomes of clients at f that nat leaves alone.
func (s shape) unserved(u *unit, id lb.ID, f lb.Frontend, a lb.Address, inside, outside lb.Verdict) {
	add := func(match, why, target string) {
		u.entries = append(u.entries, entry{bucketOf("filter", chainNoAddress, chainNoNode, f),
			match + netfilter.ToFrontend(f) + " " + comment("%s %s", id, why) + "-j " + target})
	}
	if s.noLocalhost && f.Addr.Addr().IsUnspecified() && inside == lb.Serve {
		add("-d "+s.loopback()+" ", "is not for loopback", netfilter.Reject(f.Protocol == lb.TCP, s.ipv6))
	}
	switch {
	case inside == lb.Refuse && outside == lb.Refuse:
		add("", "has no endpoints", netfilter.Reject(f.Protocol == lb.TCP, s.ipv6))
	case inside == lb.Drop && outside == lb.Drop:
		add("", "has no local endpoints", "DROP")
	case outside == lb.Drop:
		match := ""
		if f.Addr.Addr().IsUnspecified() { // what comes by loopback is not ours
			match = "! -d " + s.loopback() + " "
		}
		add(match, "has no local endpoints", "DROP")
	case len(a.Sources) > 0:
		add("", "is not for this source", "DROP")
	}
}

// stale drops what the socket of a UDP node port sends to a client whose conntrack entry
// was deleted when the Service moved here: it would make an entry that begins with the
// answer, and all that the client sends would belong to that and go to the socket.
func (s shape) stale(id lb.ID, addr netip.AddrPort) entry {
	match := "! -s " + s.loopback()
	if ip := addr.Addr(); !ip.IsUnspecified() {
		match = fmt.Sprintf("-s %s/%d", ip, ip.BitLen())
	}
	return entry{
		portBucket("filter", chainStale, chainStale, lb.UDP, "sport", addr.Port()),
		fmt.Sprintf("%s -p udp -m udp --sport %d %s-j DROP", match, addr.Port(), comment("%s has moved", id)),
	}
}

// external returns the rules of a chain EXT. With policy Local, pods of this node and
// the node itself get any endpoint, as at the cluster IP; clients elsewhere get those
// here, which see their addresses. All addresses of a Service but its
// cluster IP have the same policy.
func (s shape) external(id lb.ID, local, hasLocal bool, svc, svl string) []string {
	if !local {
		return []string{
			comment("%s masquerade external traffic", id) + "-j " + chainMark,
			"-j " + svc,
		}
	}
	var rules []string
	for _, match := range s.local {
		rules = append(rules, match+" "+comment("%s from pods of this node", id)+"-j "+svc)
	}
	const node = "-m addrtype --src-type LOCAL "
	rules = append(rules,
		node+comment("%s masquerade what this node sends", id)+"-j "+chainMark,
		node+comment("%s from this node", id)+"-j "+svc)
	if hasLocal {
		rules = append(rules, "-j "+svl)
	}
	return rules
}

// spread returns the rules of a chain that chooses among backends: each is as likely as
// any other. A client with affinity goes to where it was last.
//
// Random choice, and not round robin (--mode nth), although that is more even: it would
// start anew with each change of the endpoints, on all nodes alike, and a client whose
// connections follow a pattern, such as one to control and one for data, would find
// the same part of the endpoints each time.
func (s shape) spread(service *lb.Service, rules []string, backends []lb.Backend) []string {
	proto := "-p " + netfilter.ProtocolName(service.Protocol) + " "
	target := func(b lb.Backend) string { return "-j DNAT --to-destination " + b.Addr.String() }
	set := func(lb.Backend) string { return "" }
	if service.AffinityTimeout > 0 {
		name := func(b lb.Backend) string { return "-m recent --name " + list(service.ID, b.Addr) }
		for _, b := range backends {
			rules = append(rules, fmt.Sprintf("%s%s%s --update --seconds %d --reap %s",
				proto, comment("%s as before", service.ID), name(b), seconds(service.AffinityTimeout), target(b)))
		}
		set = func(b lb.Backend) string { return name(b) + " --set " }
	}
	for i, b := range backends {
		random := ""
		if n := len(backends) - i; n > 1 {
			random = fmt.Sprintf("-m statistic --mode random --probability %.10f ", 1/float64(n))
		}
		rules = append(rules, proto+comment("%s", service.ID)+random+set(b)+target(b))
	}
	return rules
}

// static fills the chains that are always there, but those that depend on Services.
func (s shape) static(r *netfilter.Ruleset) {
	mark := fmt.Sprintf("%#x", s.mark)
	masked := mark + "/" + mark
	outside := []string{"-j MARK --or-mark " + mark}
	if !s.all {
		var pods []string
		for _, match := range s.local {
			pods = append(pods, match+" -j RETURN")
		}
		if outside = append(pods, outside...); len(pods) == 0 {
			outside = nil
		}
	}
	forward := []string{
		comment("sluice: masqueraded") + "-m mark --mark " + masked + " -j ACCEPT",
		comment("sluice: the rest of a flow") + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
	}
	if !s.liberal {
		invalid := comment("sluice: belongs to no flow") + "-m conntrack --ctstate INVALID -j DROP"
		forward = slices.Insert(forward, 0, invalid)
	}
	r.SetChain(nat(chainServices), []string{
		"-j " + chainAddresses,
		"! -d " + s.loopback() + " -m addrtype --dst-type LOCAL -j " + chainNodePorts,
	})
	r.SetChain(nat(chainMark), []string{"-j MARK --or-mark " + mark})
	r.SetChain(nat(chainOutside), outside)
	r.SetChain(nat(chainPost), []string{
		"-m conntrack --ctstate DNAT -j " + chainHairpin,
		"-m mark ! --mark " + masked + " -j RETURN",
		// What is marked once, and leaves the node again in a tunnel, is not ours then.
		"-j MARK --xor-mark " + mark,
		comment("sluice: answers must come back here") + "-j " + kernelmodes.MasqueradeTarget(s.randomFully),
	})
	r.SetChain(netfilter.Place{Table: "filter", Chain: chainUnserved}, []string{
		"-j " + chainNoAddress,
		"-m addrtype --dst-type LOCAL -j " + chainNoNode,
	})
	r.SetChain(netfilter.Place{Table: "filter", Chain: chainForward}, forward)
}

// hairpin returns the rules that masquerade an endpoint that asks its own Service and gets
// to itself: it would not take an answer from itself for that of the Service. Without the
// match bpf they list the backends of this node.
func (s shape) hairpin(units map[lb.ID]*unit) (rules []string) {
	masquerade := comment("sluice: to itself") + "-j " + kernelmodes.MasqueradeTarget(s.randomFully)
	if s.bpf {
		match := "-m bpf --bytecode " + strconv.Quote(trace.SameAddress(s.ipv6)) + " "
		return []string{match + masquerade}
	}
	var ips []netip.Addr
	for _, u := range units {
		for _, b := range u.service.Backends {
			if b.Local {
				ips = append(ips, b.Addr.Addr())
			}
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	for _, ip := range slices.Compact(ips) {
		p := netip.PrefixFrom(ip, ip.BitLen())
		rules = append(rules, fmt.Sprintf("-s %s -d %s %s", p, p, masquerade))
	}
	return rules
}

func (s shape) loopback() string {
	if s.ipv6 {
		return "::1/128"
	}
	return "127.0.0.0/8"
}

// seconds rounds nanoseconds up.
func seconds(ns int64) int64 { return (ns + 1e9 - 1) / 1e9 }

// trial is a ruleset with one of each kind of rule, in chains of names of their own.
func (s shape) trial(program *netfilter.IPTables) *netfilter.Ruleset {
	addr := netip.MustParseAddr("192.0.2.1") // documentation addresses (RFC 5737, RFC 3849)
	if s.ipv6 {
		addr = netip.MustParseAddr("2001:db8::1")
	}
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }
	if len(s.local) == 0 {
		s.local = []string{"-i lo"}
	}
	service := &lb.Service{
		ID: lb.ID{Name: "trial", Protocol: lb.TCP, IPv6: s.ipv6},
		Addresses: []lb.Address{{Addr: at(1)}, {
			Addr: at(2), Kind: lb.LoadBalancerIP, Local: true, Sources: []netip.Prefix{netip.PrefixFrom(addr, 8)},
		}},
		Backends:        []lb.Backend{{Addr: at(3), Ready: true, Local: true}, {Addr: at(4), Ready: true}},
		AffinityTimeout: 1e9,
	}
	var d lb.Delta
	d.Note(nil, service)
	for _, p := range []lb.Protocol{lb.TCP, lb.UDP} {
		id := lb.ID{Name: "refused", Protocol: p, IPv6: s.ipv6}
		d.Note(nil, &lb.Service{ID: id, Addresses: []lb.Address{{Addr: at(5)}}})
	}
	c := newContent(netfilter.NewRuleset(program, layout(s.ipv6)), s)
	c.edit(s, c.changes(&d, s.ipv6))
	c.Rename(strings.NewReplacer(prefix, prefixProbe, kernelmodes.Suffix(service.ID, ""), ""))
	return c.Ruleset
}
