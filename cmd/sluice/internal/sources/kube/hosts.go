package kube

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/lb"
)

// OnNode returns the endpoints that run on a node, as their field nodeName says.
func (o Objects) OnNode(name string) (out []lb.Host) {
	o.hosts(func(on string, of lb.Name, addresses ...string) {
		if on != name {
			return
		}
		for _, text := range addresses {
			if addr, ok := parseAddr(text); ok {
				out = append(out, lb.Host{Service: of, Addr: addr})
			}
		}
	})
	return out
}

// NodeNames returns the nodes that endpoints run on, in order.
func (o Objects) NodeNames() (names []string) {
	known := make(map[string]bool)
	o.hosts(func(on string, _ lb.Name, _ ...string) {
		if !known[on] {
			known[on] = true
			names = append(names, on)
		}
	})
	slices.Sort(names)
	return names
}

// hosts passes the endpoints that say which node they run on.
func (o Objects) hosts(visit func(on string, of lb.Name, addresses ...string)) {
	add := func(on *string, namespace, service string, addresses ...string) {
		if on != nil {
			visit(*on, lb.Name{Namespace: namespace, Name: service}, addresses...)
		}
	}
	for slice := range o.Slices.All() {
		service := slice.Labels[discoveryv1.LabelServiceName]
		for i := range slice.Endpoints {
			add(slice.Endpoints[i].NodeName, slice.Namespace, service, slice.Endpoints[i].Addresses...)
		}
	}
	for _, e := range o.Endpoints {
		for i := range e.Subsets {
			for _, a := range e.Subsets[i].Addresses {
				add(a.NodeName, e.Namespace, e.Name, a.IP)
			}
			for _, a := range e.Subsets[i].NotReadyAddresses {
				add(a.NodeName, e.Namespace, e.Name, a.IP)
			}
		}
	}
}
