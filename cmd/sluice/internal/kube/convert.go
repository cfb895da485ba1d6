package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/lb"
)

// Objects is everything that Convert reads. The objects may be shared with
// their source (an informer's store, a manifest loader) and are never changed.
// No two of a kind have the same namespace and name; of two that do, one counts.
type Objects struct {
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	// Endpoints speak only for a Service that has no EndpointSlice, as
	// hand-written manifests of old do; a cluster mirrors them into slices.
	//
	//lint:ignore SA1019 folders of manifests written before EndpointSlice are read on purpose
	Endpoints []*corev1.Endpoints
	// Nodes matter only for the one that is ours, see Options.Facts.
	Nodes []*corev1.Node
}

// Len returns the number of objects of all kinds.
func (o Objects) Len() int {
	return len(o.Services) + len(o.Slices) + len(o.Endpoints) + len(o.Nodes)
}

// Options say for whom a Converter converts. The zero Options are the default proxy
// of a cluster, on a node that nothing is known of.
type Options struct {
	// ServiceProxyName is the value that a Service's label
	// service.kubernetes.io/service-proxy-name must have to be ours. Empty means
	// that we are the default proxy, and ours are the Services without the label.
	ServiceProxyName string

	// Facts are what is known of our node without asking: NodeName always, the
	// others to overrule the Node object of that name in Objects.
	Facts Facts
}

// Result is what Convert makes of Objects. It shares no memory with them that
// can change.
type Result struct {
	// Services hold one lb.Service for each port of each Service in each address
	// family the Service has a cluster IP of, ordered by ID, each ID once. What has not
	// changed since the last call is the same *lb.Service as then. The slice is the
	// caller's; the services are not to be written to.
	Services []*lb.Service

	// HealthChecks are ordered by namespace and name, IPv4 before IPv6.
	HealthChecks []HealthCheck

	// LeftOut are the Services with endpoints at loopback, link-local, multicast or
	// unspecified addresses, as far as that has changed since the last call.
	LeftOut []LeftOut

	// Facts are those of Options, completed by the Node object.
	Facts Facts

	// Changes is what differs from the Objects of the Converter's last call.
	Changes Changes
}

// labelServiceProxyName says which proxy serves a Service. The API module has no
// constant for it (KEP-2447).
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// converter converts one group after the other.
type converter struct {
	facts Facts
	*group

	// Memory that is used again for each Service.

	addresses []lb.Address
	backends  []lb.Backend
	ports     map[portKey][]slicePort
}

// convert sets what the Service of g comes to with the endpoints that it has.
func (c *converter) convert(g *group) {
	c.group = g
	c.index()
	clusterIPs := ClusterIPs(g.service)
	slices.SortFunc(clusterIPs, netip.Addr.Compare) // IPv4 first
	for _, ip := range clusterIPs {
		c.convertFamily(g.service, ip)
	}
	slices.SortStableFunc(g.services, func(a, b *lb.Service) int { return a.ID.Compare(b.ID) })
	g.services = slices.CompactFunc(g.services, func(a, b *lb.Service) bool { return a.ID == b.ID })
}

// convertFamily appends the ports of svc in the family of its clusterIP.
func (c *converter) convertFamily(svc *corev1.Service, clusterIP netip.Addr) {
	c.addresses = c.appendAddresses(c.addresses[:0], svc, clusterIP)
	first := len(c.services)
	for i := range svc.Spec.Ports {
		port := &svc.Spec.Ports[i]
		protocol, ok := protocolOf(port.Protocol)
		if !ok || !validPort(port.Port) {
			continue
		}
		id := lb.ID{
			Namespace: svc.Namespace,
			Name:      svc.Name,
			Port:      port.Name,
			Protocol:  protocol,
			IPv6:      clusterIP.Is6(),
		}
		c.services = append(c.services, &lb.Service{
			ID:              id,
			Addresses:       atPort(c.addresses, svc, port),
			Backends:        c.backendsOf(id),
			AffinityTimeout: affinityTimeout(svc),
			DataPath:        svc.Annotations["sluice.io/data-path"],
			Scheduler:       svc.Annotations["sluice.io/scheduler"],
		})
	}
	c.checkHealth(svc, clusterIP.Is6(), c.services[first:])
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
