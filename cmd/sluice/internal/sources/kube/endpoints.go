package kube

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/lb"
)

// slicePort is one port of a slice, with the endpoints of that slice.
type slicePort struct {
	name      string
	protocol  lb.Protocol
	ipv6      bool
	number    uint16
	endpoints []lb.Backend // without ports, shared by all ports of the slice
}

// compare returns the order of a port of a slice and a service port. What is equal belongs together.
func (p *slicePort) compare(id *lb.ID) int {
	if p.ipv6 != id.IPv6 {
		return compareBools(p.ipv6, id.IPv6)
	}
	return cmp.Or(strings.Compare(p.name, id.Port), cmp.Compare(p.protocol, id.Protocol))
}

// index reads the endpoints of the Service once, by the ports that they have, in the order of service ports: a
// Service and its slices may have tens of thousands of ports.
func (c *converter) index() {
	c.indexed = c.indexed[:0]
	if len(c.slices) > 0 {
		for _, slice := range c.slices {
			c.indexSlice(slice)
		}
	} else if c.old != nil {
		for i := range c.old.Subsets {
			c.indexSubset(&c.old.Subsets[i])
		}
	}
	slices.SortFunc(c.indexed, func(a, b slicePort) int {
		return a.compare(&lb.ID{Port: b.name, Protocol: b.protocol, IPv6: b.ipv6})
	})
}

// backendsOf returns the endpoints of one service port in one family. It is asked for service ports in their order.
func (c *converter) backendsOf(id lb.ID) []lb.Backend {
	out := c.backends[:0]
	for c.at < len(c.indexed) && c.indexed[c.at].compare(&id) < 0 {
		c.at++
	}
	for at := c.at; at < len(c.indexed) && c.indexed[at].compare(&id) == 0; at++ {
		port := &c.indexed[at]
		for _, b := range port.endpoints {
			b.Addr = netip.AddrPortFrom(b.Addr.Addr(), port.number)
			out = append(out, b)
		}
	}
	c.backends = out
	slices.SortFunc(out, compareBackends)
	out = slices.CompactFunc(out, func(a, b lb.Backend) bool { return a.Addr == b.Addr })
	kept := c.news.backends.take(len(out), c.news.of)
	copy(kept, out)
	return kept
}

// compareBackends orders by address, and puts first which of two with the same
// address is to be kept. The slice controller moves an endpoint between slices by
// writing one and then the other, and a pod network gives the address of a pod
// that is gone but for its object to a new pod, so the one that does not terminate
// is meant. The rest of the order is there to make the choice the same every time.
func compareBackends(a, b lb.Backend) int {
	if c := a.Addr.Compare(b.Addr); c != 0 {
		return c
	}
	return cmp.Or(
		compareBools(a.Terminating, b.Terminating),
		compareBools(b.Ready, a.Ready),
		compareBools(b.Serving, a.Serving),
		compareBools(b.Local, a.Local),
		cmp.Compare(a.NodeHint, b.NodeHint),
		cmp.Compare(a.ZoneHint, b.ZoneHint),
		compareBools(a.Maintenance, b.Maintenance),
		cmp.Compare(b.Weight, a.Weight),
	)
}

func (c *converter) indexSlice(slice *discoveryv1.EndpointSlice) {
	ipv6 := slice.AddressType == discoveryv1.AddressTypeIPv6
	if !ipv6 && slice.AddressType != discoveryv1.AddressTypeIPv4 {
		return
	}
	endpoints := make([]lb.Backend, 0, len(slice.Endpoints))
	for i := range slice.Endpoints {
		if b, ok := c.backend(&slice.Endpoints[i]); ok && b.Addr.Addr().Is6() == ipv6 {
			endpoints = append(endpoints, b)
		}
	}
	weigh(slice, endpoints)
	c.indexed = slices.Grow(c.indexed, len(slice.Ports))
	for i := range slice.Ports {
		port := &slice.Ports[i]
		// A port without a number means "every port" to other consumers of the
		// API; a proxy cannot dial that.
		if port.Name != nil && port.Port != nil {
			c.indexPort(*port.Name, valueOr(port.Protocol, ""), *port.Port, ipv6, endpoints)
		}
	}
}

// indexPort adds a port with its endpoints, which are all of one family.
func (c *converter) indexPort(name string, protocol corev1.Protocol, number int32, ipv6 bool, endpoints []lb.Backend) {
	p, ok := protocolOf(protocol)
	if !ok || !validPort(number) || len(endpoints) == 0 {
		return
	}
	c.indexed = append(c.indexed, slicePort{name, p, ipv6, uint16(number), endpoints})
}

// backend returns what an endpoint is, without a port.
func (c *converter) backend(endpoint *discoveryv1.Endpoint) (lb.Backend, bool) {
	if len(endpoint.Addresses) == 0 {
		return lb.Backend{}, false
	}
	// The API calls the further addresses interchangeable with the first, and no
	// controller writes any.
	addr, ok := c.endpointAddr(endpoint.Addresses[0])
	b := lb.Backend{
		Addr:        netip.AddrPortFrom(addr, 0),
		Ready:       valueOr(endpoint.Conditions.Ready, true),
		Serving:     valueOr(endpoint.Conditions.Serving, true),
		Terminating: valueOr(endpoint.Conditions.Terminating, false),
		Local:       c.facts.isLocal(endpoint.NodeName),
	}
	if hints := endpoint.Hints; hints != nil {
		b.NodeHint = hintOf(hints.ForNodes, func(h discoveryv1.ForNode) string { return h.Name }, c.facts.NodeName)
		b.ZoneHint = hintOf(hints.ForZones, func(h discoveryv1.ForZone) string { return h.Name }, c.facts.Zone)
	}
	return b, ok
}

// endpointAddr reads the address of an endpoint, and notes one that is left out.
func (c *converter) endpointAddr(text string) (netip.Addr, bool) {
	addr, ok := parseAddr(text)
	reason := untrusted(addr)
	if reason != "" {
		c.leftOut.add(text, reason)
	}
	return addr, ok && reason == ""
}

//lint:ignore SA1019 see Objects.Endpoints
func (c *converter) indexSubset(subset *corev1.EndpointSubset) {
	var families [2][]lb.Backend // IPv4 and IPv6
	read := func(addresses []corev1.EndpointAddress, ready bool) {
		for i := range addresses {
			addr, ok := c.endpointAddr(addresses[i].IP)
			if !ok {
				continue
			}
			family := &families[0]
			if addr.Is6() {
				family = &families[1]
			}
			*family = append(*family, lb.Backend{
				Addr:    netip.AddrPortFrom(addr, 0),
				Ready:   ready,
				Serving: ready, // Endpoints do not tell the two apart
				Local:   c.facts.isLocal(addresses[i].NodeName),
			})
		}
	}
	read(subset.Addresses, true)
	read(subset.NotReadyAddresses, false)
	for i := range subset.Ports {
		port := &subset.Ports[i]
		for family, endpoints := range families {
			c.indexPort(port.Name, port.Protocol, port.Port, family == 1, endpoints)
		}
	}
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
