package kube

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// Objects is everything that Convert reads. The objects may be shared with
// their source (an informer's store, a manifest loader) and are never changed.
// No two of a kind have the same namespace and name; of two that do, one counts.
type Objects struct {
	Services lists.List[*corev1.Service]
	Slices   lists.List[*discoveryv1.EndpointSlice]
	// Endpoints speak only for a Service that has no EndpointSlice, as
	// hand-written manifests of old do; a cluster mirrors them into slices.
	//
	//lint:ignore SA1019 folders of manifests written before EndpointSlice are read on purpose
	Endpoints []*corev1.Endpoints
	// Nodes matter only for the one that is ours, see Options.Facts.
	Nodes []*corev1.Node
	// ServiceCIDRs are where cluster IPs are from. Those that are being deleted count
	// until they are gone.
	ServiceCIDRs []*networkingv1.ServiceCIDR
}

// Len returns the number of objects of all kinds.
func (o Objects) Len() int {
	return o.Services.Len() + o.Slices.Len() + len(o.Endpoints) + len(o.Nodes) + len(o.ServiceCIDRs)
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

	// Whole says that Objects are all that there are, and written by hand: then what leads nowhere is a Finding. From
	// an API server others come a moment later, or are of other proxies.
	Whole bool
}

// Result is what Convert makes of Objects. It shares no memory with them that
// can change.
type Result struct {
	// Services hold one lb.Service for each port of each Service in each address
	// family the Service has a cluster IP of, ordered by ID, each ID once. What has not
	// changed since the last call is the same *lb.Service as then. The services are
	// not to be written to.
	Services lists.List[*lb.Service]

	// HealthChecks are ordered by namespace and name, IPv4 before IPv6.
	HealthChecks []HealthCheck

	// Findings are what is ignored or leads nowhere of the Services of which that has changed since the last call.
	Findings []Findings

	// Facts are those of Options, completed by the Node object and the ServiceCIDRs.
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
	policies *lb.Policies // of the Service
	news     chunks

	// Memory that is used again for each Service.

	addresses []lb.Address
	backends  []lb.Backend
	order     []int32 // of its ports
	indexed   []slicePort
	at        int // in indexed
}

// convert sets what the Service of g comes to with the endpoints that it has.
func (c *converter) convert(g *group) {
	c.group = g
	c.readPolicies()
	c.index()
	c.sortPorts()
	c.news = chunks{of: min(len(c.order), maxChunk)}
	families := families(g.service)
	c.at = 0
	c.services = make([]*lb.Service, 0, len(families)*len(c.order))
	for _, f := range families {
		c.convertFamily(g.service, f)
	}
	if len(families) > 1 {
		slices.SortStableFunc(g.services, func(a, b *lb.Service) int { return a.ID.Compare(b.ID) })
	}
	g.services = slices.CompactFunc(g.services, func(a, b *lb.Service) bool { return a.ID == b.ID })
}

// maxPorts is how many ports of a Service are served, the first ones: each change of one takes as long as its ports are
// many, and others wait meanwhile.
const maxPorts = 16_384

// sortPorts finds the order of the ports by ID.
func (c *converter) sortPorts() {
	ports := c.service.Spec.Ports
	c.order = c.order[:0]
	for i := range ports {
		c.order = append(c.order, int32(i))
	}
	c.order = c.order[:min(len(c.order), maxPorts)]
	slices.SortFunc(c.order, func(i, j int32) int {
		a, b := &ports[i], &ports[j]
		if o := strings.Compare(a.Name, b.Name); o != 0 {
			return o
		}
		p, _ := protocolOf(a.Protocol)
		q, _ := protocolOf(b.Protocol)
		return cmp.Or(cmp.Compare(p, q), cmp.Compare(i, j))
	})
}

// convertFamily appends the ports of svc in a family.
func (c *converter) convertFamily(svc *corev1.Service, f ipFamily) {
	c.addresses = c.appendAddresses(c.addresses[:0], svc, f)
	first := len(c.services)
	affinity, created := affinityTimeout(svc), age(svc, c.came)
	for _, i := range c.order {
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
			IPv6:      f.ipv6,
		}
		s := &c.news.services.take(1, c.news.of)[0]
		*s = lb.Service{
			ID:              id,
			Addresses:       c.atPort(svc, port, f.ipv6),
			Backends:        c.backendsOf(id),
			AffinityTimeout: affinity,
			Created:         created,
			Policies:        c.policies,
		}
		c.services = append(c.services, s)
	}
	c.checkHealth(svc, f.ipv6, c.services[first:])
}

// maxChunk is for how many ports of a Service memory is taken at once, which costs a third of taking it for each.
// It stays while one of these is as it was.
const maxChunk = 16

// chunks are where what is made for the ports of one Service comes from.
type chunks struct {
	of        int // ports
	services  chunk[lb.Service]
	addresses chunk[lb.Address]
	backends  chunk[lb.Backend]
}

type chunk[T any] []T

// take returns n elements, of memory for several times as many.
func (c *chunk[T]) take(n, times int) []T {
	if n > len(*c) {
		*c = make([]T, n*times)
	}
	out := (*c)[:n:n]
	*c = (*c)[n:]
	return out
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
