package kube

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/lb"
)

type objectKey struct{ namespace, name string }

// endpointSource is what is known of the endpoints of one Service.
type endpointSource struct {
	slices    []*discoveryv1.EndpointSlice
	endpoints *corev1.Endpoints // used only while slices is empty
}

func endpointSources(o Objects) map[objectKey]endpointSource {
	sources := make(map[objectKey]endpointSource, len(o.Services))
	for _, slice := range o.Slices {
		name := slice.Labels[discoveryv1.LabelServiceName]
		if name == "" {
			continue
		}
		key := objectKey{slice.Namespace, name}
		source := sources[key]
		source.slices = append(source.slices, slice)
		sources[key] = source
	}
	for _, endpoints := range o.Endpoints {
		key := objectKey{endpoints.Namespace, endpoints.Name}
		source := sources[key]
		source.endpoints = endpoints
		sources[key] = source
	}
	return sources
}

// backends returns the endpoints of one service port in one family.
func (s endpointSource) backends(id lb.ID) []lb.Backend {
	var out []lb.Backend
	if len(s.slices) > 0 {
		for _, slice := range s.slices {
			out = appendSlice(out, slice, id)
		}
	} else if s.endpoints != nil {
		for i := range s.endpoints.Subsets {
			out = appendSubset(out, &s.endpoints.Subsets[i], id)
		}
	}
	// The slice controller moves an endpoint between slices by writing one and
	// then the other, so an address may be seen twice for a while: the better
	// condition comes first and is kept.
	slices.SortFunc(out, func(a, b lb.Backend) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c
		}
		if c := compareBools(a.Terminating, b.Terminating); c != 0 {
			return c
		}
		if c := compareBools(b.Ready, a.Ready); c != 0 {
			return c
		}
		return compareBools(b.Serving, a.Serving)
	})
	return slices.CompactFunc(out, func(a, b lb.Backend) bool { return a.Addr == b.Addr })
}

func appendSlice(out []lb.Backend, slice *discoveryv1.EndpointSlice, id lb.ID) []lb.Backend {
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
		var protocol corev1.Protocol
		if port.Protocol != nil {
			protocol = *port.Protocol
		}
		if p, ok := protocolOf(protocol); !ok || p != id.Protocol {
			continue
		}
		out = slices.Grow(out, len(slice.Endpoints))
		for j := range slice.Endpoints {
			endpoint := &slice.Endpoints[j]
			if len(endpoint.Addresses) == 0 {
				continue
			}
			// The API calls the further addresses interchangeable with the first,
			// and no controller writes any.
			addr, ok := parseAddr(endpoint.Addresses[0])
			if !ok || addr.Is6() != id.IPv6 {
				continue
			}
			out = append(out, lb.Backend{
				Addr:        netip.AddrPortFrom(addr, uint16(*port.Port)),
				Ready:       valueOr(endpoint.Conditions.Ready, true),
				Serving:     valueOr(endpoint.Conditions.Serving, true),
				Terminating: valueOr(endpoint.Conditions.Terminating, false),
			})
		}
	}
	return out
}

func appendSubset(out []lb.Backend, subset *corev1.EndpointSubset, id lb.ID) []lb.Backend {
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
				})
			}
		}
		add(subset.Addresses, true)
		add(subset.NotReadyAddresses, false)
	}
	return out
}

func valueOr(p *bool, otherwise bool) bool {
	if p == nil {
		return otherwise
	}
	return *p
}
