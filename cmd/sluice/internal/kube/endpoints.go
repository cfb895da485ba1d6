package kube

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/lb"
)

// backendsOf returns the endpoints of one service port in one family.
func (c *converter) backendsOf(id lb.ID) []lb.Backend {
	out := c.backends[:0]
	if len(c.slices) > 0 {
		for _, slice := range c.slices {
			out = c.appendSlice(out, slice, id)
		}
	} else if c.old != nil {
		for i := range c.old.Subsets {
			out = c.appendSubset(out, &c.old.Subsets[i], id)
		}
	}
	c.backends = out
	slices.SortFunc(out, compareBackends)
	out = slices.CompactFunc(out, func(a, b lb.Backend) bool { return a.Addr == b.Addr })
	return slices.Clone(out)
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
	)
}

func (c *converter) appendSlice(out []lb.Backend, slice *discoveryv1.EndpointSlice, id lb.ID) []lb.Backend {
	want := discoveryv1.AddressTypeIPv4
	if id.IPv6 {
		want = discoveryv1.AddressTypeIPv6
	}
	if slice.AddressType != want {
		return out
	}
	for i := range slice.Ports {
		port := &slice.Ports[i]
		// A port without a number means "every port" to other consumers of the
		// API; a proxy cannot dial that.
		if port.Name == nil || *port.Name != id.Port || port.Port == nil || !validPort(*port.Port) {
			continue
		}
		if p, ok := protocolOf(valueOr(port.Protocol, "")); !ok || p != id.Protocol {
			continue
		}
		for j := range slice.Endpoints {
			if b, ok := c.backend(&slice.Endpoints[j], uint16(*port.Port)); ok && b.Addr.Addr().Is6() == id.IPv6 {
				out = append(out, b)
			}
		}
	}
	return out
}

// backend returns what an endpoint is at one of its ports.
func (c *converter) backend(endpoint *discoveryv1.Endpoint, port uint16) (lb.Backend, bool) {
	if len(endpoint.Addresses) == 0 {
		return lb.Backend{}, false
	}
	// The API calls the further addresses interchangeable with the first, and no
	// controller writes any.
	addr, ok := parseAddr(endpoint.Addresses[0])
	b := lb.Backend{
		Addr:        netip.AddrPortFrom(addr, port),
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

//lint:ignore SA1019 see Objects.Endpoints
func (c *converter) appendSubset(out []lb.Backend, subset *corev1.EndpointSubset, id lb.ID) []lb.Backend {
	for i := range subset.Ports {
		port := &subset.Ports[i]
		protocol, ok := protocolOf(port.Protocol)
		if !ok || protocol != id.Protocol || port.Name != id.Port || !validPort(port.Port) {
			continue
		}
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for j := range addresses {
				addr, ok := parseAddr(addresses[j].IP)
				if !ok || addr.Is6() != id.IPv6 {
					continue
				}
				out = append(out, lb.Backend{
					Addr:    netip.AddrPortFrom(addr, uint16(port.Port)),
					Ready:   ready,
					Serving: ready, // Endpoints do not tell the two apart
					Local:   c.facts.isLocal(addresses[j].NodeName),
				})
			}
		}
		add(subset.Addresses, true)
		add(subset.NotReadyAddresses, false)
	}
	return out
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
