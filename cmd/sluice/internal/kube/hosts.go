package kube

import "net/netip"

// OnNode returns the addresses of the endpoints that run on a node, as their objects say.
func (o Objects) OnNode(name string) (out []netip.Addr) {
	add := func(on *string, addresses ...string) {
		if on == nil || *on != name {
			return
		}
		for _, text := range addresses {
			if addr, ok := parseAddr(text); ok {
				out = append(out, addr)
			}
		}
	}
	for slice := range o.Slices.All() {
		for i := range slice.Endpoints {
			add(slice.Endpoints[i].NodeName, slice.Endpoints[i].Addresses...)
		}
	}
	for _, e := range o.Endpoints {
		for i := range e.Subsets {
			for _, a := range e.Subsets[i].Addresses {
				add(a.NodeName, a.IP)
			}
			for _, a := range e.Subsets[i].NotReadyAddresses {
				add(a.NodeName, a.IP)
			}
		}
	}
	return out
}
