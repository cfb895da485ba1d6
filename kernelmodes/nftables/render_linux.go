package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// shape is how rules are written for this node.
type shape struct {
	ipv6               bool
	mark               uint32
	all                bool           // masquerade all connections to cluster IPs
	bridge, interfaces string         // of pods
	pods               []netip.Prefix // their addresses
	ask                Ask
}

// entry is an element of a set that is always there.
type entry struct {
	set string
	nft.Element
}

// unit is all that is written for one Service. It is not changed once made.
type unit struct {
	chains  map[string][]nft.Rule
	entries []entry
	clients []nft.Set // of backends, with affinity
	shards  []nft.Set // maps that others use as well

	counted   int              // 1 for one of which it matters what is in flight
	of        lb.Name          // the Service
	endpoints []netip.AddrPort // that a process may choose
}

func (u *unit) add(set string, e nft.Element) { u.entries = append(u.entries, entry{set, e}) }

// render returns what one Service needs.
//
// An address leads to the chain svc or svl, which choose a backend, or through ext, which
// distinguishes where clients are, and fw, which checks their addresses. A packet that leaves
// them without a backend keeps its destination, and meets the chain "unserved".
func (s *shape) render(service *lb.Service, cluster, local rotation) *unit {
	u := &unit{chains: make(map[string][]nft.Rule), of: lb.Name{Namespace: service.Namespace, Name: service.Name}}
	name := kernelmodes.Suffix(service.ID, "")
	svc, svl, ext := prefixCluster+name, prefixLocal+name, prefixExternal+name
	used := make(map[string]bool) // chains
	var extLocal bool
	for _, a := range service.Addresses {
		if a.Kind == lb.NodePort && a.Addr.Addr().IsLoopback() {
			continue
		}
		if a.Kind == lb.ClusterIP {
			u.add(setIPs, nft.Element{Key: nft.Key(a.Addr.Addr())})
		}
		set := setServices
		if a.Addr.Addr().IsUnspecified() {
			set = setNodePorts
		}
		if s.ask.Count > 0 { // also without endpoints: the process may keep the packet until there is one
			s.ask.add(u, service, a.Addr)
		}
		inside, outside := service.Verdicts(a)
		u.unserved(service.Protocol, a, inside, outside)
		if inside != lb.Serve && outside != lb.Serve {
			continue
		}
		target := ext
		if a.Kind == lb.ClusterIP {
			if target = svc; a.Local {
				target = svl
			}
			who := chainOutside
			if service.Masquerade {
				who = chainMark
			}
			u.add(setClusters, nft.Element{Key: key(service.Protocol, a.Addr), Data: who})
		} else {
			extLocal = extLocal || a.Local
		}
		used[target] = true
		if len(a.Sources) > 0 {
			target = s.sources(u, service.ID, a, target)
		}
		u.add(set, nft.Element{Key: key(service.Protocol, a.Addr), Data: target})
		if a.Kind == lb.NodePort && service.Protocol == lb.UDP {
			u.late(a.Addr)
		}
	}
	if used[ext] {
		hasLocal := len(local.order) > 0
		used[svc], used[svl] = true, used[svl] || extLocal && hasLocal
		u.chains[ext] = s.external(service.ID, extLocal, used[svl], svc, svl)
	}
	for name, r := range map[string]rotation{svc: cluster, svl: local} {
		if used[name] {
			u.chains[name] = s.spread(u, service, r)
		}
	}
	if len(used) > 0 {
		for i := range service.Backends { // not those of this node alone: manifests may not say where a pod is
			ip := service.Backends[i].Addr.Addr()
			u.add(setSame, nft.Element{Key: nft.Key(ip, ip)})
			if s.ask.Count > 0 {
				u.endpoints = append(u.endpoints, service.Backends[i].Addr)
			}
		}
	}
	return u
}

// key returns what packets to an address have; without the address if that is any of the node.
func key(p lb.Protocol, addr netip.AddrPort) string {
	if addr.Addr().IsUnspecified() {
		return nft.Key(numbers[p], addr.Port())
	}
	return nft.Key(addr.Addr(), numbers[p], addr.Port())
}

// unserved adds what becomes of clients at an address that nat leaves alone.
func (u *unit) unserved(p lb.Protocol, a lb.Address, inside, outside lb.Verdict) {
	set, target := setUnserved, ""
	node := a.Addr.Addr().IsUnspecified()
	if node {
		set = setNoNode
	}
	switch {
	case inside == lb.Refuse && outside == lb.Refuse:
		target = chainReject
	case inside == lb.Drop && outside == lb.Drop, len(a.Sources) > 0 && outside != lb.Drop:
		target = chainDrop
	case outside == lb.Drop && node:
		target = chainDropElse
	case outside == lb.Drop:
		target = chainDrop
	default:
		return
	}
	u.add(set, nft.Element{Key: key(p, a.Addr), Data: target})
}

// late adds that the socket of a node port may answer too late.
func (u *unit) late(addr netip.AddrPort) {
	if addr.Addr().IsUnspecified() {
		u.add(setUDPPorts, nft.Element{Key: nft.Key(addr.Port())})
	} else {
		u.add(setUDPAddrs, nft.Element{Key: nft.Key(addr.Addr(), addr.Port())})
	}
}

// sources returns the chain that lets only clients within the ranges of an address through to a target.
func (s *shape) sources(u *unit, id lb.ID, a lb.Address, target string) string {
	var rules []nft.Rule
	for _, p := range kernelmodes.OfFamily(a.Sources, s.ipv6) {
		rules = append(rules, s.from(p).GotoChain(target).Rule(id.String()+" source range"))
	}
	chain := prefixSources + kernelmodes.Suffix(id, "")
	if len(u.chains) > 0 {
		chain += fmt.Sprint("-", len(u.chains)) // addresses may differ in their ranges
	}
	for other, same := range u.chains {
		if slices.Equal(same, rules) {
			chain = other
		}
	}
	u.chains[chain] = rules
	return chain
}

// external returns the rules of a chain ext. With policy Local, pods of this node and
// the node itself get any endpoint, as at the cluster IP; clients elsewhere get those
// here, which see their addresses. All addresses of a Service but its
// cluster IP have the same policy.
func (s *shape) external(id lb.ID, local, hasLocal bool, svc, svl string) (rules []nft.Rule) {
	if !local {
		return []nft.Rule{s.rule().SetMark(s.mark, true).GotoChain(svc).Rule(id.String() + " external")}
	}
	for _, pod := range s.fromPods() {
		rules = append(rules, pod.GotoChain(svc).Rule(id.String()+" from pods of this node"))
	}
	rules = append(rules, s.rule().FromLocal().SetMark(s.mark, true).GotoChain(svc).Rule(id.String()+" from this node"))
	if hasLocal {
		rules = append(rules, s.rule().GotoChain(svl).Rule(id.String()+" external"))
	}
	return rules
}

// spread returns the rules of a chain that chooses among backends: each has its turn. A client with
// affinity goes to where it was last.
func (s *shape) spread(u *unit, service *lb.Service, r rotation) (rules []nft.Rule) {
	id, n := service.ID.String(), uint32(len(r.order))
	if s.ask.Count > 0 {
		rules = append(rules, s.rule().Jump(chainChosen).Rule(id+" as the process says"))
	}
	affine := service.AffinityTimeout > 0
	if affine {
		for _, b := range r.order {
			rules = append(rules, s.rule().In(s.endpoint(u, service, b), nft.Source).
				GotoChain(prefixEndpoint+kernelmodes.Suffix(service.ID, b.String())).Rule(id+" as before"))
		}
	}
	if n == 0 {
		return rules
	}
	turns := shard(setEndpoints, r.number)
	if affine {
		turns = shard(setRotation, r.number)
	}
	u.shards = append(u.shards, turns)
	for i, b := range r.order {
		e := nft.Element{Key: nft.Key(r.number, uint32(i)), Data: nft.Key(b.Addr(), b.Port())}
		if affine {
			e.Data = prefixEndpoint + kernelmodes.Suffix(service.ID, b.String())
		}
		u.add(turns.Name, e)
	}
	choose := func(which nft.Load) nft.Rule {
		if affine {
			return s.rule().Goto(turns.Name, nft.Constant(r.number), which).Rule(id)
		}
		return s.rule().Map(turns.Name, nft.Constant(r.number), which).DNAT().Rule(id)
	}
	if n > 1 {
		rules = append(rules, choose(nft.Rotation(n)))
	}
	// A packet that has counted by an old rule, and looks into the map when the last turns have gone, gets the first.
	return append(rules, choose(nft.Constant(0)))
}

// endpoint adds what a backend with affinity needs, once, and returns the name of the set of its clients.
func (s *shape) endpoint(u *unit, service *lb.Service, b netip.AddrPort) string {
	set, chain := clientSet(service.ID, b), prefixEndpoint+kernelmodes.Suffix(service.ID, b.String())
	if _, there := u.chains[chain]; !there {
		u.clients = append(u.clients, set)
		u.chains[chain] = []nft.Rule{
			s.rule().Remember(set.Name, time.Duration(service.AffinityTimeout), nft.Source).Rule(service.ID.String()),
			s.rule().DNATTo(b).Rule(service.ID.String()), // also if the set is full
		}
	}
	return set.Name
}
