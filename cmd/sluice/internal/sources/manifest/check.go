package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
)

// meta defaults and checks what names an object, and claims the name. It reports
// false if it cannot be used.
func (p *parser) meta(o *object, kind string, meta *metav1.ObjectMeta) bool {
	namespaced := kind != nodeType.Kind && kind != cidrType.Kind
	if namespaced && meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	p.title = title(kind, meta.Namespace, meta.Name)
	name := apivalidation.NameIsDNSSubdomain
	if kind == serviceType.Kind {
		name = apivalidation.NameIsDNSLabel // it becomes a label of a DNS name
	}
	meta.GenerateName = "" // names are not generated here
	for _, e := range apivalidation.ValidateObjectMeta(meta, namespaced, name, field.NewPath("metadata")) {
		p.bad(e)
	}
	o.claims = []claim{{kind: kind, namespace: meta.Namespace, name: meta.Name}}
	return !p.failed
}

// oneOf checks a field that has a list of words to choose from, and fills in the
// default where it is empty.
func oneOf[T ~string](p *parser, path *field.Path, value *T, byDefault T, others ...T) {
	*value = cmp.Or(*value, byDefault)
	if words := append([]T{byDefault}, others...); !slices.Contains(words, *value) {
		p.bad(field.NotSupported(path, *value, slices.DeleteFunc(words, func(w T) bool { return w == "" })))
	}
}

func orNew[T any](value **T) *T {
	if *value == nil {
		*value = new(T)
	}
	return *value
}

// number checks a number that must be between 1 and most.
func (p *parser) number(path *field.Path, value, most int32) {
	for _, reason := range validation.IsInRange(int(value), 1, int(most)) {
		p.bad(field.Invalid(path, value, reason))
	}
}

const lastPort = 65535

// port checks one of several ports of an object; names are those of others.
func (p *parser) port(at *field.Path, name string, needsName bool, names map[string]bool, number int32,
	protocol *corev1.Protocol) {
	switch {
	case name == "" && needsName:
		p.bad(field.Required(at.Child("name"), "a port needs a name where there are several"))
	case names[name]:
		p.bad(field.Duplicate(at.Child("name"), name))
	}
	names[name] = true
	p.number(at.Child("port"), number, lastPort)
	oneOf(p, at.Child("protocol"), protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

// ip checks an address of a single host, of either family.
func (p *parser) ip(path *field.Path, text string) netip.Addr {
	for _, e := range validation.IsValidIPForLegacyField(path, text, true, nil) {
		p.bad(e)
		return netip.Addr{}
	}
	ip, _ := netip.ParseAddr(text)
	if ip.IsUnspecified() || ip.IsMulticast() {
		p.bad(field.Invalid(path, text, "must be the unicast address of a host"))
	}
	return ip
}

// endpointIP checks the address of an endpoint. Loopback addresses pass here, for Services
// of before: kube.Converter leaves those endpoints out, and the rest of the file counts.
func (p *parser) endpointIP(path *field.Path, text string) netip.Addr {
	ip := p.ip(path, text)
	if ip.IsLinkLocalUnicast() {
		p.bad(field.Invalid(path, text, "may not be link-local: it cannot be dialled without a zone"))
	}
	return ip
}

// indexed returns the path of an item of a list.
type indexed func(i int) *field.Path

// pair fills in one from the other of two fields, a value and the list that begins
// with it: the API has both where one value became too few. It returns the path of
// the items as they are written; ok is false if there are none.
func (p *parser) pair(path *field.Path, name string, value *string, list *[]string) (at indexed, ok bool) {
	at = path.Child(name + "s").Index
	switch {
	case len(*list) == 0 && *value == "":
		return nil, false
	case len(*list) == 0:
		*list = []string{*value}
		return func(int) *field.Path { return path.Child(name) }, true
	case *value == "":
		*value = (*list)[0]
	case *value != (*list)[0]:
		p.bad(field.Invalid(at(0), (*list)[0], "must be the same as "+name))
		return nil, false
	}
	if len(*list) > 2 {
		p.bad(field.TooMany(path.Child(name+"s"), len(*list), 2))
		return nil, false
	}
	return at, true
}

// families checks that a list has at most one of each family.
func (p *parser) families(at indexed, list []string, parse func(path *field.Path, text string) netip.Addr) {
	var first netip.Addr
	for i, text := range list {
		ip := parse(at(i), text)
		if i == 0 {
			first = ip
		} else if ip.IsValid() && first.IsValid() && ip.Is6() == first.Is6() {
			p.bad(field.Invalid(at(i), text, "must be of the other IP family: only one of each is allowed"))
		}
	}
}

func (p *parser) cidr(path *field.Path, text string) netip.Addr {
	for _, e := range validation.IsValidCIDRForLegacyField(path, text, true, nil) {
		p.bad(e)
		return netip.Addr{}
	}
	prefix, _ := netip.ParsePrefix(text)
	return prefix.Addr()
}

// service fills in the defaults of a Service and checks the fields in use.
func (p *parser) service(svc *corev1.Service) {
	spec, path := &svc.Spec, field.NewPath("spec")
	oneOf(p, path.Child("type"), &spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)
	if p.failed {
		return // what else is wrong depends on the type
	}
	if spec.Type == corev1.ServiceTypeExternalName {
		given := spec.ClusterIP != "" || len(spec.ClusterIPs) > 0
		p.set(path.Child("clusterIP"), given, spec, corev1.ServiceTypeClusterIP)
	} else {
		oneOf(p, path.Child("internalTrafficPolicy"), orNew(&spec.InternalTrafficPolicy),
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
		p.clusterIPs(path, svc)
	}
	p.servicePorts(path.Child("ports"), spec)
	p.affinity(path, spec)
	p.external(path, spec)
	ingress := field.NewPath("status", "loadBalancer", "ingress")
	p.set(ingress, len(svc.Status.LoadBalancer.Ingress) > 0, spec, corev1.ServiceTypeLoadBalancer)
	for i := range svc.Status.LoadBalancer.Ingress {
		if in := &svc.Status.LoadBalancer.Ingress[i]; in.IP != "" {
			p.ip(ingress.Index(i).Child("ip"), in.IP)
			oneOf(p, ingress.Index(i).Child("ipMode"), orNew(&in.IPMode),
				corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)
		}
	}
}

// set reports a field that is set although a Service of this type cannot have it.
func (p *parser) set(path *field.Path, is bool, spec *corev1.ServiceSpec, types ...corev1.ServiceType) {
	if is && !slices.Contains(types, spec.Type) {
		p.bad(field.Forbidden(path, "may not be set when the type is "+string(spec.Type)))
	}
}

// clusterIPs checks spec.clusterIP and spec.clusterIPs. Nothing here allocates
// addresses, so a Service that has no other and leaves that to the API server gets a warning.
func (p *parser) clusterIPs(path *field.Path, svc *corev1.Service) {
	spec := &svc.Spec
	if spec.ClusterIP == "" && len(spec.ClusterIPs) == 0 {
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		}
		for i := range spec.IPFamilies {
			oneOf(p, path.Child("ipFamilies").Index(i), &spec.IPFamilies[i], corev1.IPv4Protocol, corev1.IPv6Protocol)
		}
		if !kube.HasAddress(svc) {
			p.warn("spec", "spec.clusterIP is missing and is not allocated here, so the Service cannot be reached; "+
				"write it, or externalIPs, or None if that is meant")
		}
		return
	}
	at, ok := p.pair(path, "clusterIP", &spec.ClusterIP, &spec.ClusterIPs)
	if !ok {
		return
	}
	if !slices.Contains(spec.ClusterIPs, corev1.ClusterIPNone) {
		p.families(at, spec.ClusterIPs, p.ip)
	} else if len(spec.ClusterIPs) > 1 {
		p.bad(field.Invalid(path.Child("clusterIPs"), spec.ClusterIPs, "None must be the only one"))
	} else {
		p.set(at(0), true, spec, corev1.ServiceTypeClusterIP)
	}
}

func (p *parser) servicePorts(path *field.Path, spec *corev1.ServiceSpec) {
	if len(spec.Ports) == 0 && spec.ClusterIP != corev1.ClusterIPNone && spec.Type != corev1.ServiceTypeExternalName {
		p.bad(field.Required(path, "a Service needs a port"))
	}
	names := make(map[string]bool, len(spec.Ports))
	for i := range spec.Ports {
		port, at := &spec.Ports[i], path.Index(i)
		p.port(at, port.Name, len(spec.Ports) > 1, names, port.Port, &port.Protocol)
		if port.NodePort != 0 {
			p.set(at.Child("nodePort"), true, spec, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
			p.number(at.Child("nodePort"), port.NodePort, lastPort)
		} else if spec.Type == corev1.ServiceTypeNodePort {
			at := at.Child("nodePort").String()
			p.warn(at, at+" is missing and is not allocated here, so nodes do not serve this port; write a number")
		}
	}
}

func (p *parser) affinity(path *field.Path, spec *corev1.ServiceSpec) {
	const longest = 86_400 // the API's limit, a day
	oneOf(p, path.Child("sessionAffinity"), &spec.SessionAffinity,
		corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return
	}
	client := orNew(&orNew(&spec.SessionAffinityConfig).ClientIP)
	client.TimeoutSeconds = cmp.Or(client.TimeoutSeconds, new(corev1.DefaultClientIPServiceAffinitySeconds))
	p.number(path.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), *client.TimeoutSeconds, longest)
}

// external checks what clients outside the cluster reach a Service by.
func (p *parser) external(path *field.Path, spec *corev1.ServiceSpec) {
	for i, text := range spec.ExternalIPs {
		at := path.Child("externalIPs").Index(i)
		if ip := p.ip(at, text); ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			p.bad(field.Invalid(at, text, "may not be loopback or link-local: other hosts cannot send to it"))
		}
	}
	policy := path.Child("externalTrafficPolicy")
	internal := spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) == 0
	if internal || spec.Type == corev1.ServiceTypeExternalName {
		p.set(policy, spec.ExternalTrafficPolicy != "", spec)
	} else {
		oneOf(p, policy, &spec.ExternalTrafficPolicy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	}
	if port := spec.HealthCheckNodePort; port != 0 {
		p.set(path.Child("healthCheckNodePort"), true, spec, corev1.ServiceTypeLoadBalancer)
		p.number(path.Child("healthCheckNodePort"), port, lastPort)
	}
	ranges := path.Child("loadBalancerSourceRanges")
	p.set(ranges, len(spec.LoadBalancerSourceRanges) > 0, spec, corev1.ServiceTypeLoadBalancer)
	for i, text := range spec.LoadBalancerSourceRanges {
		p.cidr(ranges.Index(i), strings.TrimSpace(text)) // the API takes space around a range
	}
}

// claimFrontends makes the claims of a Service but for that to its name.
//
// An API server that allocates a node port gives its number to one Service
// whatever the protocol (kubernetes 1.36, portallocator). That is a limit of its
// bookkeeping: here TCP and UDP of one number may belong to two Services.
func (o *object) claimFrontends(svc *corev1.Service) {
	add := func(protocol corev1.Protocol, ip netip.Addr, port int32) {
		if port != 0 {
			o.claims = append(o.claims, claim{protocol: protocol, frontend: netip.AddrPortFrom(ip, uint16(port))})
		}
	}
	spec, ips := &svc.Spec, kube.ClusterIPs(svc)
	for i := range spec.Ports {
		port := &spec.Ports[i]
		for _, ip := range ips {
			add(port.Protocol, ip, port.Port)
		}
		add(port.Protocol, netip.Addr{}, port.NodePort)
	}
	add(corev1.ProtocolTCP, netip.Addr{}, spec.HealthCheckNodePort) // which speaks HTTP
}

var sliceLabel = field.NewPath("metadata", "labels").Key(discoveryv1.LabelServiceName)

// slice fills in the defaults of an EndpointSlice and checks the fields in use.
func (p *parser) slice(slice *discoveryv1.EndpointSlice) {
	if service := slice.Labels[discoveryv1.LabelServiceName]; service == "" {
		p.bad(field.Required(sliceLabel, "set this label to the name of the Service"))
	} else if reasons := validation.IsDNS1123Label(service); len(reasons) > 0 {
		p.bad(field.Invalid(sliceLabel, service, reasons[0]))
	}
	names := make(map[string]bool, len(slice.Ports))
	for i := range slice.Ports {
		port, at := &slice.Ports[i], field.NewPath("ports").Index(i)
		number := cmp.Or(port.Port, new(int32(lastPort))) // none: all ports
		p.port(at, *orNew(&port.Name), false, names, *number, orNew(&port.Protocol))
	}
	oneOf(p, field.NewPath("addressType"), &slice.AddressType, "",
		discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)
	switch slice.AddressType {
	case "":
		p.bad(field.Required(field.NewPath("addressType"), "write IPv4 or IPv6"))
	case discoveryv1.AddressTypeFQDN:
		p.warn("addressType", "ignored: addressType is FQDN, and only IP addresses can be served")
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
		p.addresses(slice)
	}
}

// addresses checks those of a slice.
func (p *parser) addresses(slice *discoveryv1.EndpointSlice) {
	v6 := slice.AddressType == discoveryv1.AddressTypeIPv6
	for i := range slice.Endpoints {
		addresses := slice.Endpoints[i].Addresses
		if len(addresses) == 1 {
			ip, err := netip.ParseAddr(addresses[0])
			if err == nil && ip.IsGlobalUnicast() && ip.Is6() == v6 && !ip.Is4In6() && ip.Zone() == "" {
				continue // as nearly all: the path is half of the work
			}
		}
		list := field.NewPath("endpoints").Index(i).Child("addresses")
		if len(addresses) == 0 {
			p.bad(field.Required(list, "write the endpoint's address"))
		}
		for j, text := range addresses {
			ip := p.endpointIP(list.Index(j), text)
			if ip.IsValid() && ip.Is6() != v6 {
				p.bad(field.Invalid(list.Index(j), text, "must be of the family "+string(slice.AddressType)))
			}
		}
	}
}

// endpoints fills in the defaults of Endpoints and checks the fields in use.
func (p *parser) endpoints(endpoints *corev1.Endpoints) {
	for i := range endpoints.Subsets {
		subset, path := &endpoints.Subsets[i], field.NewPath("subsets").Index(i)
		for j, a := range subset.Addresses {
			p.endpointIP(path.Child("addresses").Index(j).Child("ip"), a.IP)
		}
		for j, a := range subset.NotReadyAddresses {
			p.endpointIP(path.Child("notReadyAddresses").Index(j).Child("ip"), a.IP)
		}
		names := make(map[string]bool, len(subset.Ports))
		for j := range subset.Ports {
			port, at := &subset.Ports[j], path.Child("ports").Index(j)
			p.port(at, port.Name, len(subset.Ports) > 1, names, port.Port, &port.Protocol)
		}
	}
}

// serviceCIDR checks a ServiceCIDR.
func (p *parser) serviceCIDR(cidr *networkingv1.ServiceCIDR) {
	p.families(field.NewPath("spec", "cidrs").Index, cidr.Spec.CIDRs, p.cidr)
}

// node checks a Node. Addresses of other types, such as Hostname, may be anything.
func (p *parser) node(node *corev1.Node) {
	spec := &node.Spec
	if at, ok := p.pair(field.NewPath("spec"), "podCIDR", &spec.PodCIDR, &spec.PodCIDRs); ok {
		p.families(at, spec.PodCIDRs, p.cidr)
	}
	for i, address := range node.Status.Addresses {
		switch address.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
			p.ip(field.NewPath("status", "addresses").Index(i).Child("address"), address.Address)
		}
	}
}
