package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// slice fills in the defaults of an EndpointSlice and checks it. The API's
// limits on the number of endpoints and ports are for its own store and are not
// held here.
func (d *decoder) slice(o *object, n *yaml.Node, slice *discoveryv1.EndpointSlice) {
	c := checker{d, n}
	c.metadata(sliceType.Kind, &slice.ObjectMeta)
	o.claim(claim{kind: sliceType.Kind, namespace: slice.Namespace, name: slice.Name}, o.line)

	label := at("metadata", "labels", discoveryv1.LabelServiceName)
	if service, ok := slice.Labels[discoveryv1.LabelServiceName]; !ok {
		c.bad(label, "is missing; set this label to the name of the Service")
	} else if len(validation.IsDNS1123Label(service)) > 0 {
		c.bad(label, "is %q, which is no name of a Service; %s", shorten(service), labelForm)
	}

	names := make(map[string]bool, len(slice.Ports))
	for i := range slice.Ports {
		p := &slice.Ports[i]
		if p.Name == nil {
			p.Name = new(string)
		}
		if p.Protocol == nil {
			p.Protocol = new(corev1.Protocol)
		}
		c.portName(at("ports", i, "name"), *p.Name, false, names)
		c.protocol(at("ports", i, "protocol"), p.Protocol)
		if p.Port != nil {
			c.port(at("ports", i, "port"), *p.Port)
		}
	}

	switch slice.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case discoveryv1.AddressTypeFQDN:
		c.warn(lineOf(n, "addressType"), "ignored: addressType is FQDN, and only IP addresses can be served")
		return
	case "":
		c.bad(at("addressType"), "is missing; write IPv4 or IPv6")
		return
	default:
		c.bad(at("addressType"), "is %q; write IPv4 or IPv6", shorten(string(slice.AddressType)))
		return
	}
	for i := range slice.Endpoints {
		addresses := slice.Endpoints[i].Addresses
		if len(addresses) == 0 {
			c.bad(at("endpoints", i, "addresses"), "is empty; write the endpoint's address")
		}
		for j, text := range addresses {
			c.endpointIP(at("endpoints", i, "addresses", j), text, string(slice.AddressType))
		}
		c.place(i, &slice.Endpoints[i])
	}
}

// place checks where endpoint i of a slice is and for whom.
func (c checker) place(i int, endpoint *discoveryv1.Endpoint) {
	c.nodeName(endpoint.NodeName, "endpoints", i, "nodeName")
	if endpoint.Hints == nil {
		return
	}
	for j, zone := range endpoint.Hints.ForZones {
		if zone.Name == "" || len(validation.IsValidLabelValue(zone.Name)) > 0 {
			c.bad(at("endpoints", i, "hints", "forZones", j, "name"), "is %q, which is no name of a zone; write what Nodes have as the label %s",
				shorten(zone.Name), corev1.LabelTopologyZone)
		}
	}
	for j, node := range endpoint.Hints.ForNodes {
		c.nodeName(&node.Name, "endpoints", i, "hints", "forNodes", j, "name")
	}
}

// nodeName checks the name of a Node, if there is one.
func (c checker) nodeName(name *string, path ...any) {
	if name != nil && len(validation.IsDNS1123Subdomain(*name)) > 0 {
		c.bad(path, "is %q, which is no name of a Node; %s", shorten(*name), nameForm)
	}
}

// endpoints fills in the defaults of Endpoints and checks them.
func (d *decoder) endpoints(o *object, n *yaml.Node, endpoints *corev1.Endpoints) {
	c := checker{d, n}
	c.metadata(endpointsType.Kind, &endpoints.ObjectMeta)
	o.claim(claim{kind: endpointsType.Kind, namespace: endpoints.Namespace, name: endpoints.Name}, o.line)
	for i := range endpoints.Subsets {
		subset := &endpoints.Subsets[i]
		if len(subset.Addresses)+len(subset.NotReadyAddresses) == 0 {
			c.bad(at("subsets", i), "has neither addresses nor notReadyAddresses; write one, or remove the subset")
		}
		for j := range subset.Addresses {
			c.endpointIP(at("subsets", i, "addresses", j, "ip"), subset.Addresses[j].IP, "")
			c.nodeName(subset.Addresses[j].NodeName, "subsets", i, "addresses", j, "nodeName")
		}
		for j := range subset.NotReadyAddresses {
			c.endpointIP(at("subsets", i, "notReadyAddresses", j, "ip"), subset.NotReadyAddresses[j].IP, "")
			c.nodeName(subset.NotReadyAddresses[j].NodeName, "subsets", i, "notReadyAddresses", j, "nodeName")
		}
		names := make(map[string]bool, len(subset.Ports))
		for j := range subset.Ports {
			p := &subset.Ports[j]
			c.portName(at("subsets", i, "ports", j, "name"), p.Name, len(subset.Ports) > 1, names)
			c.port(at("subsets", i, "ports", j, "port"), p.Port)
			c.protocol(at("subsets", i, "ports", j, "protocol"), &p.Protocol)
		}
	}
}

// endpointIP checks the address of an endpoint. Unlike an API server it allows
// loopback addresses: without a cluster, a backend on the same host is ordinary.
// A link-local address cannot be dialled without a zone, which the API has no
// field for.
func (c checker) endpointIP(path []any, text, family string) {
	ip, why := parseIP(text, family)
	if why == "" && ip.IsLinkLocalUnicast() {
		why = "is " + text + ", which is link-local and cannot be dialled; write another address of the endpoint"
	}
	if why != "" {
		c.bad(path, "%s", why)
	}
}
