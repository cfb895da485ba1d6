package manifest

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/kube"
)

// external checks what clients outside the cluster reach a Service by, and fills
// in the defaults of it.
func (c checker) external(svc *corev1.Service) {
	spec := &svc.Spec
	for i, text := range spec.ExternalIPs {
		c.externalIP(at("spec", "externalIPs", i), text)
	}
	if spec.ExternalTrafficPolicy != "" && !isExternal(spec) {
		c.wrongType(at("spec", "externalTrafficPolicy"), spec.Type, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
	}
	c.healthCheckNodePort(spec)
	c.sourceRanges(spec)
	c.ingress(svc)
}

// wrongType reports a field that is set although a Service of this type cannot
// have it, and tells whether it did. A type that is no word, which is reported
// elsewhere, may have been meant to be the right one.
func (c checker) wrongType(path []any, is corev1.ServiceType, want ...corev1.ServiceType) bool {
	if slices.Contains(want, is) || !slices.Contains(serviceTypes, is) {
		return false
	}
	var words []string
	for _, t := range want {
		words = append(words, string(t))
	}
	c.bad(path, "is set, but the type is %s; remove it, or make the type %s", is, strings.Join(words, " or "))
	return true
}

// externalIP checks an address that the API wants to be good for any host.
func (c checker) externalIP(path []any, text string) {
	ip, why := parseIP(text, "")
	if why == "" && (ip.IsLoopback() || ip.IsLinkLocalUnicast()) {
		why = "is " + text + ", which other hosts cannot send to; write an address that is routed to the node"
	}
	if why != "" {
		c.bad(path, "%s", why)
	}
}

// nodePort checks a node port, which may be 0 for none, of a port of a Service;
// seen holds those of its other ports. Like cluster IPs node ports are not
// allocated here, and without one the type NodePort is in vain.
func (c checker) nodePort(path []any, t corev1.ServiceType, number portNumber, seen map[portNumber]bool) {
	switch {
	case number.port == 0:
		if t == corev1.ServiceTypeNodePort {
			c.warn(lineOf(c.root, path...), "%s is missing and is not allocated here, so nodes do not serve this port; write a number", pathText(path))
		}
		return
	case !validPort(number.port):
		c.port(path, number.port)
	case c.wrongType(path, t, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer):
	case seen[number]:
		c.bad(path, "is %d/%s, as that of another port of the Service; change one of the two", number.port, number.protocol)
	}
	seen[number] = true
}

func (c checker) healthCheckNodePort(spec *corev1.ServiceSpec) {
	path, port := at("spec", "healthCheckNodePort"), spec.HealthCheckNodePort
	isTaken := func(p corev1.ServicePort) bool { return p.Protocol == corev1.ProtocolTCP && p.NodePort == port }
	switch {
	case port == 0:
	case !validPort(port):
		c.port(path, port)
	case c.wrongType(path, spec.Type, corev1.ServiceTypeLoadBalancer):
	case spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyCluster:
		c.bad(path, "is set, but spec.externalTrafficPolicy is Cluster; remove it, or make the policy Local")
	case slices.ContainsFunc(spec.Ports, isTaken):
		c.bad(path, "is %d, as the node port of a TCP port of the Service; change one of the two", port)
	}
}

func (c checker) sourceRanges(spec *corev1.ServiceSpec) {
	list := at("spec", "loadBalancerSourceRanges")
	if len(spec.LoadBalancerSourceRanges) == 0 || c.wrongType(list, spec.Type, corev1.ServiceTypeLoadBalancer) {
		return
	}
	for i, text := range spec.LoadBalancerSourceRanges {
		// The API takes space around a range, a habit from when they all were in
		// one annotation.
		if _, why := parsePrefix(strings.TrimSpace(text)); why != "" {
			c.bad(below(list, i), "%s", why)
		}
	}
}

// ingress checks what a load balancer, or whoever plays its part where there is
// no cluster, has written into the status of a Service.
func (c checker) ingress(svc *corev1.Service) {
	list, ingress := at("status", "loadBalancer", "ingress"), svc.Status.LoadBalancer.Ingress
	if len(ingress) == 0 || c.wrongType(list, svc.Spec.Type, corev1.ServiceTypeLoadBalancer) {
		return
	}
	for i := range ingress {
		in, path := &ingress[i], below(list, i)
		if in.IP != "" {
			c.ip(below(path, "ip"), in.IP)
			if in.IPMode == nil {
				in.IPMode = new(corev1.LoadBalancerIPMode)
				*in.IPMode = corev1.LoadBalancerIPModeVIP
			}
		}
		if mode := in.IPMode; mode != nil {
			switch {
			case in.IP == "":
				c.bad(below(path, "ipMode"), "is set, but there is no ip; write one, or remove this")
			case *mode != corev1.LoadBalancerIPModeVIP && *mode != corev1.LoadBalancerIPModeProxy:
				c.bad(below(path, "ipMode"), "is %q; write VIP or Proxy", shorten(string(*mode)))
			}
		}
		c.ingressName(below(path, "hostname"), in.Hostname)
	}
}

// ingressName checks the name of a load balancer, which only clients use.
func (c checker) ingressName(path []any, name string) {
	if name == "" {
		return
	}
	if _, err := netip.ParseAddr(name); err == nil {
		c.bad(path, "is the IP address %s; write it as ip", shorten(name))
	} else if len(validation.IsDNS1123Subdomain(name)) > 0 {
		c.bad(path, "is %q, which is no DNS name; %s", shorten(name), nameForm)
	}
}

// claimFrontends makes the claims of a Service but for that to its name.
//
// An API server that allocates a node port gives its number to one Service
// whatever the protocol (kubernetes 1.36, portallocator). That is a limit of its
// bookkeeping: here TCP and UDP of one number may belong to two Services.
func (c checker) claimFrontends(o *object, svc *corev1.Service) {
	spec := &svc.Spec
	line := lineOf(c.root, "spec", "clusterIPs")
	if _, list := field(child(c.root, "spec"), "clusterIPs"); list == nil {
		line = lineOf(c.root, "spec", "clusterIP")
	}
	for _, ip := range kube.ClusterIPs(svc) {
		for i := range spec.Ports {
			port := &spec.Ports[i]
			o.claim(claim{protocol: port.Protocol, frontend: netip.AddrPortFrom(ip, uint16(port.Port))}, line)
		}
	}
	for i := range spec.Ports {
		if port := &spec.Ports[i]; port.NodePort != 0 {
			o.claim(nodePortClaim(port.Protocol, port.NodePort), lineOf(c.root, "spec", "ports", i, "nodePort"))
		}
	}
	if port := spec.HealthCheckNodePort; port != 0 { // which speaks HTTP
		o.claim(nodePortClaim(corev1.ProtocolTCP, port), lineOf(c.root, "spec", "healthCheckNodePort"))
	}
}
