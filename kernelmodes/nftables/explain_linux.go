package nftables

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// shown is how many endpoints of a chain are named.
const shown = 16

// explanation is of what render makes, for one address.
type explanation struct {
	*shape
	*unit
	service *lb.Service
	address lb.Address
	turns   map[string][]netip.AddrPort // by the chain that chooses
	lines   []string
}

func (x *explanation) say(form string, args ...any) {
	x.lines = append(x.lines, fmt.Sprintf(form, args...))
}

// explain is Engine.Explain.
func (e *Engine) explain(service *lb.Service, a lb.Address, node lb.Node) []string {
	s := e.shape(node)
	order := func(of []lb.Backend) (r rotation) {
		for i := range of {
			r.order = append(r.order, of[i].Addr)
		}
		return r
	}
	cluster, local := order(service.Eligible()), order(service.EligibleLocal())
	name := kernelmodes.Suffix(service.ID, "")
	x := &explanation{shape: &s, unit: s.render(service, cluster, local), service: service, address: a,
		turns: map[string][]netip.AddrPort{prefixCluster + name: cluster.order, prefixLocal + name: local.order}}
	family := "ip"
	if e.IPv6 {
		family = "ip6"
	}
	x.say("table %s %s", family, e.table())
	for _, set := range []string{setAsked, setAskedPorts} {
		if x.element(set) != nil {
			x.say("set %s: %s: the process is asked, by queues %d to %d", set, x.key(), s.ask.First,
				s.ask.First+s.ask.Count-1)
		}
	}
	if to := x.element(setClusters); to != nil {
		x.say("map %s: %s : goto %s%s", setClusters, x.key(), to.Data, x.masquerades(to.Data))
	}
	for _, set := range []string{setServices, setNodePorts} {
		if to := x.element(set); to != nil {
			x.say("map %s: %s : goto %s", set, x.key(), to.Data)
			x.chain(to.Data)
		}
	}
	for _, set := range []string{setUnserved, setNoNode} {
		if to := x.element(set); to != nil {
			x.say("map %s, for what has got no endpoint: %s : goto %s", set, x.key(), to.Data)
		}
	}
	return x.lines
}

// element returns what a set has for the address.
func (x *explanation) element(set string) *entry {
	for i := range x.entries {
		if e := &x.entries[i]; e.set == set && e.Key == key(x.service.Protocol, x.address.Addr) {
			return e
		}
	}
	return nil
}

// key is that of the address as nft prints it.
func (x *explanation) key() string {
	at, protocol := x.address.Addr, strings.ToLower(x.service.Protocol.String())
	if at.Addr().IsUnspecified() {
		return fmt.Sprintf("%s . %d", protocol, at.Port())
	}
	return fmt.Sprintf("%s . %s . %d", at.Addr(), protocol, at.Port())
}

// masquerades says whom a chain has masqueraded that asks a cluster IP.
func (x *explanation) masquerades(chain string) string {
	switch {
	case chain == chainMark || x.all:
		return ", to be masqueraded"
	case len(x.fromPods()) > 0:
		return ", to be masqueraded unless it comes from a pod of this node" + x.ranges(x.pods)
	}
	return ", which does nothing: which clients are pods of this node is not known"
}

// ranges are those of clients, in brackets.
func (x *explanation) ranges(of []netip.Prefix) string {
	if len(of) == 0 {
		return ""
	}
	return " (" + strings.Trim(fmt.Sprint(of), "[]") + ")"
}

// chain says what one does, and those after it.
func (x *explanation) chain(name string) {
	suffix := kernelmodes.Suffix(x.service.ID, "")
	svc, svl, ext := prefixCluster+suffix, prefixLocal+suffix, prefixExternal+suffix
	switch {
	case strings.HasPrefix(name, prefixSources):
		next := ext
		if x.address.Kind == lb.ClusterIP {
			if next = svc; x.address.Local {
				next = svl
			}
		}
		x.say("chain %s: only from the ranges%s goto %s", name,
			x.ranges(kernelmodes.OfFamily(x.address.Sources, x.ipv6)), next)
		x.chain(next)
	case name == ext && !x.address.Local:
		x.say("chain %s: to be masqueraded, goto %s", name, svc)
		x.chain(svc)
	case name == ext:
		if len(x.fromPods()) > 0 {
			x.say("chain %s: from pods of this node%s goto %s", name, x.ranges(x.pods), svc)
		}
		x.say("chain %s: from this node to be masqueraded, goto %s", name, svc)
		if len(x.turns[svl]) > 0 {
			x.say("chain %s: from elsewhere goto %s", name, svl)
			x.chain(svl)
		} else {
			x.say("chain %s: from elsewhere none, since no endpoint is here", name)
		}
		x.chain(svc)
	default:
		x.spreads(name)
	}
}

// spreads says how a chain chooses.
func (x *explanation) spreads(name string) {
	order := x.turns[name]
	if x.ask.Count > 0 {
		x.say("chain %s: jump %s, where the map %s has the endpoint that the process says", name, chainChosen,
			setNumbered)
	}
	turns := setEndpoints
	if x.service.AffinityTimeout > 0 {
		turns = setRotation
		for _, b := range order[:min(len(order), shown)] {
			x.say("chain %s: a client that set %s has, as before goto %s: dnat to %s", name,
				clientSet(x.service.ID, b).Name, prefixEndpoint+kernelmodes.Suffix(x.service.ID, b.String()), b)
		}
	}
	var all []string
	for _, b := range order[:min(len(order), shown)] {
		all = append(all, b.String())
	}
	if more := len(order) - shown; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	switch of := strings.Join(all, ", "); len(order) {
	case 0:
		x.say("chain %s: no endpoint", name)
	case 1:
		x.say("chain %s: by a map %s..: dnat to %s", name, turns, of)
	default:
		x.say("chain %s: in turn (numgen inc mod %d) by a map %s..: dnat to %s", name, len(order), turns, of)
	}
}
