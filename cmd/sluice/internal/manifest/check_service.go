package manifest

import (
	"slices"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// service fills in the defaults of a Service and checks it.
func (d *decoder) service(o *object, n *yaml.Node, svc *corev1.Service) {
	c := checker{d, n}
	c.metadata(serviceType.Kind, &svc.ObjectMeta)
	serviceDefaults(&svc.Spec)
	c.enums(&svc.Spec)
	c.servicePorts(&svc.Spec)
	c.clusterIPs(&svc.Spec)
	c.affinity(&svc.Spec)
	c.external(svc)
	o.claim(claim{kind: serviceType.Kind, namespace: svc.Namespace, name: svc.Name}, o.line)
	c.claimFrontends(o, svc)
}

// serviceDefaults fills in what an API server would, but for the ports and what
// it allocates (cluster IPs, node ports).
func serviceDefaults(spec *corev1.ServiceSpec) {
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		config := spec.SessionAffinityConfig
		if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
			seconds := int32(corev1.DefaultClientIPServiceAffinitySeconds)
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}
	}
	if spec.InternalTrafficPolicy == nil && spec.Type != corev1.ServiceTypeExternalName {
		policy := corev1.ServiceInternalTrafficPolicyCluster
		spec.InternalTrafficPolicy = &policy
	}
	if isExternal(spec) && spec.ExternalTrafficPolicy == "" {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
}

// isExternal tells whether clients outside the cluster can reach a Service.
func isExternal(spec *corev1.ServiceSpec) bool {
	switch spec.Type {
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) > 0
}

var (
	serviceTypes = []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName}

	trafficDistributions = []string{corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode}
)

// enums checks the fields that have a list of words to choose from.
func (c checker) enums(spec *corev1.ServiceSpec) {
	if !slices.Contains(serviceTypes, spec.Type) {
		c.bad(at("spec", "type"), "is %q; write ClusterIP, NodePort, LoadBalancer or ExternalName", shorten(string(spec.Type)))
	}
	if p := spec.InternalTrafficPolicy; p != nil && *p != corev1.ServiceInternalTrafficPolicyCluster && *p != corev1.ServiceInternalTrafficPolicyLocal {
		c.bad(at("spec", "internalTrafficPolicy"), "is %q; write Cluster or Local", shorten(string(*p)))
	}
	switch spec.ExternalTrafficPolicy {
	case "", corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal:
	default:
		c.bad(at("spec", "externalTrafficPolicy"), "is %q; write Cluster or Local", shorten(string(spec.ExternalTrafficPolicy)))
	}
	if d := spec.TrafficDistribution; d != nil && !slices.Contains(trafficDistributions, *d) {
		c.bad(at("spec", "trafficDistribution"), "is %q; write PreferSameZone, PreferSameNode or PreferClose", shorten(*d))
	}
}

// portNumber is what the ports of a Service, and its node ports, must differ in.
type portNumber struct {
	protocol corev1.Protocol
	port     int32
}

func (c checker) servicePorts(spec *corev1.ServiceSpec) {
	list := at("spec", "ports")
	headless := spec.ClusterIP == corev1.ClusterIPNone || slices.Contains(spec.ClusterIPs, corev1.ClusterIPNone)
	if len(spec.Ports) == 0 && !headless && spec.Type != corev1.ServiceTypeExternalName {
		c.bad(list, "is empty; a Service needs at least one port")
	}
	names, numbers := make(map[string]bool, len(spec.Ports)), make(map[portNumber]bool, len(spec.Ports))
	nodePorts := make(map[portNumber]bool)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		c.portName(below(list, i, "name"), p.Name, len(spec.Ports) > 1, names)
		c.port(below(list, i, "port"), p.Port)
		c.protocol(below(list, i, "protocol"), &p.Protocol)
		key := portNumber{p.Protocol, p.Port}
		if numbers[key] {
			c.bad(below(list, i, "port"), "is %d/%s, as that of another port of the Service; change one of the two", p.Port, p.Protocol)
		}
		numbers[key] = true
		switch target := p.TargetPort; {
		case target == intstr.FromInt32(0) || target == intstr.FromString(""):
			p.TargetPort = intstr.FromInt32(p.Port)
		case target.Type == intstr.Int:
			c.port(below(list, i, "targetPort"), target.IntVal)
		case len(validation.IsValidPortName(target.StrVal)) > 0:
			c.bad(below(list, i, "targetPort"), "is %q; write a port number without quotes, or the name of a port (at most 15 lower-case letters, digits and '-')", shorten(target.StrVal))
		}
		c.nodePort(below(list, i, "nodePort"), spec.Type, portNumber{p.Protocol, p.NodePort}, nodePorts)
	}
}

// clusterIPs checks spec.clusterIP and spec.clusterIPs and fills in the one from
// the other. Nothing here allocates addresses, so a Service that leaves that to
// the API server gets a warning: it cannot be reached.
func (c checker) clusterIPs(spec *corev1.ServiceSpec) {
	list := at("spec", "clusterIPs")
	missing := spec.ClusterIP == "" && len(spec.ClusterIPs) == 0
	if spec.Type == corev1.ServiceTypeExternalName {
		if !missing {
			c.bad(at("spec", "clusterIP"), "is set, but the type is ExternalName; remove one of the two")
		}
		return
	}
	if missing {
		c.warn(lineOf(c.root, "spec"), "spec.clusterIP is missing and is not allocated here, so nobody can reach the Service; write an address, or None if that is meant")
		return
	}
	path, ok := c.pair("clusterIP", &spec.ClusterIP, "clusterIPs", &spec.ClusterIPs)
	if !ok {
		return
	}
	if len(spec.ClusterIPs) > 2 {
		c.bad(list, "has %d addresses; write at most one of each family", len(spec.ClusterIPs))
		return
	}
	if slices.Contains(spec.ClusterIPs, corev1.ClusterIPNone) {
		if len(spec.ClusterIPs) > 1 {
			c.bad(list, "has None beside an address; write either")
		} else if spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer {
			c.bad(path(0), "is None, but the type is %s; write an address, or make the type ClusterIP", spec.Type)
		}
		return
	}
	var families []corev1.IPFamily
	for i, text := range spec.ClusterIPs {
		ip, why := parseIP(text, "")
		if why != "" {
			c.bad(path(i), "%s", why)
			return
		}
		family := familyOf(ip)
		if slices.Contains(families, family) {
			c.bad(path(i), "is %s, the second %s address; write at most one of each family", text, family)
		}
		families = append(families, family)
	}
	c.families(spec, families)
}

// families checks spec.ipFamilies against the families of the cluster IPs, and
// fills it in.
func (c checker) families(spec *corev1.ServiceSpec, families []corev1.IPFamily) {
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = families
	}
	for i, family := range spec.IPFamilies {
		path := at("spec", "ipFamilies", i)
		switch {
		case family != corev1.IPv4Protocol && family != corev1.IPv6Protocol:
			c.bad(path, "is %q; write IPv4 or IPv6", shorten(string(family)))
		case i >= len(families) || family != families[i]:
			c.bad(path, "is %s, but the cluster IP in that place is not; make spec.ipFamilies and spec.clusterIPs agree", family)
		}
	}
}

// maxAffinitySeconds is the API's limit, a day.
const maxAffinitySeconds = 86_400

func (c checker) affinity(spec *corev1.ServiceSpec) {
	config := at("spec", "sessionAffinityConfig")
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		if spec.SessionAffinityConfig != nil {
			c.bad(config, "is set, but spec.sessionAffinity is not ClientIP; set that, or remove this")
		}
	case corev1.ServiceAffinityClientIP:
		seconds := *spec.SessionAffinityConfig.ClientIP.TimeoutSeconds
		if seconds < 1 || seconds > maxAffinitySeconds {
			c.bad(below(config, "clientIP", "timeoutSeconds"), "is %d; write 1 to %d seconds", seconds, maxAffinitySeconds)
		}
	default:
		c.bad(at("spec", "sessionAffinity"), "is %q; write None or ClientIP", shorten(string(spec.SessionAffinity)))
	}
}
