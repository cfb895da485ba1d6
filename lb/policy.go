package lb

import (
	"maps"
	"net/netip"
	"slices"
)

// Who may ask at an address, and which backends they get.

// String returns "serve", "refuse" or "drop".
func (v Verdict) String() string { return name(v, "serve", "refuse", "drop") }

// Verdicts says what becomes of clients on this node, and of all others, that ask
// at a, one of the addresses of s: what a pick would find if a allows them.
func (s *Service) Verdicts(a Address) (inside, outside Verdict) {
	of := [Sets]Verdict{Refuse, Refuse}
	for i := range s.Backends {
		// Neither hints nor better backends make a set empty, so that each backend
		// can be looked at by itself.
		b := &s.Backends[i]
		switch {
		case !b.ready() && !b.servingTerminating():
		case b.Local:
			return Serve, Serve
		default:
			of = [Sets]Verdict{ClusterSet: Serve, LocalSet: Drop}
		}
	}
	return of[a.set(true)], of[a.set(false)]
}

// set returns the set that clients inside or outside of this node get at a. Policy Local of
// external addresses is not for those inside: they are taken for ones that went out to a load
// balancer and came back; a cluster IP has no such way.
func (a *Address) set(inside bool) Set {
	if a.Local && (a.Kind == ClusterIP || !inside) {
		return LocalSet
	}
	return ClusterSet
}

// ruled reports whether it matters at a who asks.
func (a *Address) ruled() bool { return a.Local || len(a.Sources) > 0 }

// allows reports whether the client may ask at a.
func (a *Address) allows(client netip.Addr) bool {
	return len(a.Sources) == 0 || within(a.Sources, client)
}

// node is a Node made ready for looking up clients, without zones and mapped forms.
type node struct {
	podCIDRs  []netip.Prefix
	addresses map[netip.Addr]struct{}
	nodePorts []netip.Addr
	elsewhere []netip.Addr
	own       []netip.AddrPort
}

func newNode(n Node) node {
	of := node{podCIDRs: make([]netip.Prefix, len(n.PodCIDRs)), addresses: make(map[netip.Addr]struct{},
		len(n.Addresses)), nodePorts: n.NodePorts, elsewhere: n.Elsewhere, own: n.Own}
	for i, p := range n.PodCIDRs {
		of.podCIDRs[i] = unmapPrefix(p)
	}
	for _, a := range n.Addresses {
		if a.IsValid() { // else it would be that of clients that are not known
			of.addresses[plain(a)] = struct{}{}
		}
	}
	return of
}

// equal reports whether both say the same.
func (n *node) equal(o *node) bool {
	return slices.Equal(n.podCIDRs, o.podCIDRs) && maps.Equal(n.addresses, o.addresses) &&
		slices.Equal(n.nodePorts, o.nodePorts) && slices.Equal(n.elsewhere, o.elsewhere) &&
		slices.Equal(n.own, o.own)
}

// answers reports whether this program itself answers at f.
func (n *node) answers(f Frontend) bool {
	return f.Protocol == TCP && slices.ContainsFunc(n.own, func(own netip.AddrPort) bool {
		if own.Addr().IsUnspecified() {
			_, here := n.addresses[f.Addr.Addr()]
			return (here || f.Addr.Addr().IsUnspecified()) && own.Port() == f.Addr.Port()
		}
		return own == f.Addr
	})
}

// serves reports whether node ports are served at an address.
func (n *node) serves(addr netip.Addr) bool {
	if slices.Contains(n.nodePorts, addr) {
		return true
	}
	if !slices.Contains(n.nodePorts, unspecified(addr)) {
		return false
	}
	_, own := n.addresses[addr]
	return own || addr.IsLoopback()
}

// has reports whether a client that asked for the address asked is on this node: a pod of the
// node, or the node itself, also if it comes from the very address it asks for. That is its source
// if the address is configured on it, as load-balancer IPs often are.
func (n *node) has(client, asked netip.Addr) bool {
	if client.IsLoopback() || client == asked {
		return true
	}
	if _, ok := n.addresses[client]; ok {
		return true
	}
	return within(n.podCIDRs, client)
}

func within(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// admitted returns who may ask at an address. The node and its pods need to be in the sources like all
// others; but with the address asked for as its source (see has) the node may ask if any of its own may.
func (n *node) admitted(sources []netip.Prefix, asked netip.Addr) []netip.Prefix {
	if asked.IsUnspecified() || within(sources, plain(asked)) {
		return sources
	}
	for own := range n.addresses {
		if within(sources, own) {
			return append(slices.Clip(sources), netip.PrefixFrom(plain(asked), plain(asked).BitLen()))
		}
	}
	return sources
}

// plain returns a in the form in which clients and addresses are compared: mapped
// IPv4 as IPv4, and without a zone.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// unmapPrefix returns a prefix of IPv4-mapped addresses as one of IPv4 addresses.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	const mapped = 96 // bits before those of the IPv4 address
	if p.Addr().Is4In6() && p.Bits() >= mapped {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return p
}
