package transparent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nft"
)

const (
	tableName = "sluice-transparent"

	// priority of the rule is before that of the main table, and routeTable has a number that no one else is known
	// to use.
	priority   = 90
	routeTable = 21521
)

// state is what is known to be in force.
type state struct {
	known  [2]bool // else another process may have left something
	on     [2]bool
	tables [2]*nft.Table // where on
}

func (r *Rules) sync(ipv6, on bool) (err error) {
	at := 0
	if ipv6 {
		at = 1
	}
	if r.known[at] && r.on[at] == on {
		return nil
	}
	f := family{ipv6, r.Mark}
	if !on {
		err = f.remove()
	} else if r.tables[at], err = f.add(); err != nil {
		err = errors.Join(err, f.remove())
	}
	if err != nil {
		r.known[at], r.on[at] = false, false
		return fmt.Errorf("change rules for transparent connections: %w", err)
	}
	r.known[at], r.on[at] = true, on
	return nil
}

func (r *Rules) isOn(ipv6 bool) bool {
	if ipv6 {
		return r.on[1]
	}
	return r.on[0]
}

func (r *Rules) verify() bool {
	intact := true
	for i, on := range r.on {
		if !on {
			continue
		}
		f := family{i == 1, r.Mark}
		if same, err := r.tables[i].Verify(context.Background()); err != nil || !same || !f.routed() {
			r.known[i], intact = false, false
		}
	}
	return intact
}

// family is one address family, and the bit of its mark.
type family struct {
	ipv6 bool
	mark uint32
}

// add adds what marks at last, so that nothing is marked that has no route.
func (f family) add() (*nft.Table, error) {
	if err := netfilter.Privileged(); err != nil {
		return nil, err
	}
	route, err := f.route()
	if err == nil {
		err = netlink.RouteReplace(route)
	}
	if err != nil {
		return nil, fmt.Errorf("add route: %w", err)
	}
	if err := netlink.RuleAdd(f.rule()); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("add rule of the routing policy: %w", err)
	}
	if err := f.unrule(f.mark); err != nil {
		return nil, err
	}
	table := &nft.Table{Name: tableName, IPv6: f.ipv6}
	const mangle = -150
	hook := &nft.Hook{Type: "filter", Number: unix.NF_INET_PRE_ROUTING, Priority: mangle}
	table.SetChain("prerouting", hook, []nft.Rule{
		nft.NewRule(f.ipv6).Protocol(unix.IPPROTO_TCP).Transparent().SetMark(f.mark, true).Rule("answers to sluice")})
	return table, table.Write()
}

// routed reports whether the rule and the route are there.
func (f family) routed() bool {
	rules, err := f.rules()
	if err != nil || !slices.ContainsFunc(rules, func(r netlink.Rule) bool { return r.Mark == f.mark }) {
		return false
	}
	routes, err := netlink.RouteListFiltered(f.number(), &netlink.Route{Table: routeTable}, netlink.RT_FILTER_TABLE)
	return err == nil && len(routes) > 0
}

// remove removes all of it, in the reverse order, as far as it is there.
func (f family) remove() error {
	_, err := nft.Remove(f.ipv6, tableName)
	err = errors.Join(err, f.unrule(0))
	routes, listErr := netlink.RouteListFiltered(f.number(), &netlink.Route{Table: routeTable}, netlink.RT_FILTER_TABLE)
	if !absent(listErr) {
		err = errors.Join(err, fmt.Errorf("list routes: %w", listErr))
	}
	for i := range routes {
		if delErr := netlink.RouteDel(&routes[i]); !absent(delErr) {
			err = errors.Join(err, fmt.Errorf("delete route: %w", delErr))
		}
	}
	return err
}

// rules returns our rules of the routing policy, with any mark: an earlier process may have used another one.
func (f family) rules() ([]netlink.Rule, error) {
	return netlink.RuleListFiltered(f.number(), f.rule(), netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PRIORITY)
}

// unrule deletes our rules of the routing policy with other marks than one.
func (f family) unrule(but uint32) (err error) {
	rules, listErr := f.rules()
	if !absent(listErr) {
		return fmt.Errorf("list rules of the routing policy: %w", listErr)
	}
	for i := range rules {
		if rules[i].Mark == but {
			continue
		}
		rules[i].Family = f.number()
		if delErr := netlink.RuleDel(&rules[i]); !absent(delErr) {
			err = errors.Join(err, fmt.Errorf("delete rule of the routing policy: %w", delErr))
		}
	}
	return err
}

// absent reports whether there is nothing left to remove: it is gone, or this kernel has no such family.
func absent(err error) bool {
	return err == nil || slices.ContainsFunc([]error{unix.ENOENT, unix.ESRCH, unix.EAFNOSUPPORT, unix.EOPNOTSUPP},
		func(e error) bool { return errors.Is(err, e) })
}

func (f family) number() int {
	if f.ipv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// rule has what is marked looked up in our table.
func (f family) rule() *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Mark, r.Mask = f.number(), priority, routeTable, f.mark, &f.mark
	return r
}

// route delivers everything to this node.
func (f family) route() (*netlink.Route, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if f.ipv6 {
		all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Table: routeTable, Type: unix.RTN_LOCAL,
		Scope: netlink.SCOPE_HOST, Family: f.number()}, nil
}

func cleanup(context.Context) error {
	return netfilter.EachFamily(func(ipv6 bool) error { return family{ipv6: ipv6}.remove() })
}
