package kube

import (
	"hash/crc32"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-lb/sluice/lb"
)

// ClusterIPs returns the cluster IPs at which svc is served: at most one of
// each family, the first named first. It is empty for a Service that no proxy
// serves (headless, ExternalName), and for one of a file that has no cluster IP. What ipFamilies says is not
// asked: the API server keeps both lists alike, and an address knows its family.
func ClusterIPs(svc *corev1.Service) (ips []netip.Addr) {
	spec := &svc.Spec
	if !proxied(spec) {
		return nil
	}
	texts := spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{spec.ClusterIP}
	}
	for _, text := range texts {
		ip, ok := parseAddr(text)
		if ok && !slices.ContainsFunc(ips, func(other netip.Addr) bool { return other.Is6() == ip.Is6() }) {
			ips = append(ips, ip)
		}
	}
	return ips
}

// proxied reports whether proxies serve Services like this one.
func proxied(spec *corev1.ServiceSpec) bool {
	return spec.Type != corev1.ServiceTypeExternalName && spec.ClusterIP != corev1.ClusterIPNone
}

// ipFamily is an address family in which a Service is served.
type ipFamily struct {
	ipv6      bool
	clusterIP netip.Addr // invalid: it has none
}

// families returns the families in which svc is served, IPv4 first: those of its cluster IPs. Every Service of an API
// server has one; a Service of a file can do without. Then its other addresses count, and for node ports ipFamilies.
func families(svc *corev1.Service) (out []ipFamily) {
	spec, ips := &svc.Spec, ClusterIPs(svc)
	for _, ip := range ips {
		out = append(out, ipFamily{ip.Is6(), ip})
	}
	if len(ips) == 0 && proxied(spec) {
		for _, text := range spec.ExternalIPs {
			if ip, ok := parseAddr(text); ok {
				out = append(out, ipFamily{ipv6: ip.Is6()})
			}
		}
		for _, ip := range loadBalancerIPs(svc) {
			out = append(out, ipFamily{ipv6: ip.Is6()})
		}
		if slices.ContainsFunc(spec.Ports, func(p corev1.ServicePort) bool { return hasNodePort(svc, &p) }) {
			for _, f := range spec.IPFamilies {
				out = append(out, ipFamily{ipv6: f == corev1.IPv6Protocol})
			}
		}
	}
	slices.SortFunc(out, func(a, b ipFamily) int { return compareBools(a.ipv6, b.ipv6) })
	return slices.Compact(out)
}

// HasAddress reports whether there is an address at which svc is served.
func HasAddress(svc *corev1.Service) bool { return len(families(svc)) > 0 }

// hasNodePort reports whether a port of svc is served at a node port.
func hasNodePort(svc *corev1.Service, port *corev1.ServicePort) bool {
	return (svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer) &&
		validPort(port.NodePort)
}

// appendAddresses appends the addresses at which all ports of svc are served in
// a family, with port 0.
func (c *converter) appendAddresses(out []lb.Address, svc *corev1.Service, f ipFamily) []lb.Address {
	spec := &svc.Spec
	add := func(ip netip.Addr, kind lb.Kind, local bool, sources []netip.Prefix) {
		// kube-proxy has a rule for each way in which an IP comes to a Service, and
		// the first rule that matches counts. So an external IP that is also a
		// load-balancer IP is open to everybody.
		same := func(a lb.Address) bool { return a.Addr.Addr() == ip }
		if ip.IsValid() && ip.Is6() == f.ipv6 && !slices.ContainsFunc(out, same) {
			out = append(out, lb.Address{Addr: netip.AddrPortFrom(ip, 0), Kind: kind, Local: local, Sources: sources})
		}
	}
	policy := spec.InternalTrafficPolicy
	add(f.clusterIP, lb.ClusterIP, policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal, nil)
	local, ips := externalLocal(svc), loadBalancerIPs(svc)
	for _, text := range spec.ExternalIPs {
		if ip, ok := parseAddr(text); ok && slices.Contains(ips, ip) {
			add(ip, lb.LoadBalancerIP, local, nil)
		} else if ok {
			add(ip, lb.ExternalIP, local, nil)
		}
	}
	if len(ips) > 0 {
		ranges := sources(spec.LoadBalancerSourceRanges, f.ipv6)
		for _, ip := range ips {
			add(ip, lb.LoadBalancerIP, local, ranges)
		}
	}
	return out
}

// atPort returns a copy of the addresses for one port of svc, with its node port.
func (c *converter) atPort(svc *corev1.Service, port *corev1.ServicePort, ipv6 bool) []lb.Address {
	nodePort := hasNodePort(svc, port)
	length := len(c.addresses)
	if nodePort {
		length++
	}
	out := c.news.addresses.take(length, c.news.of)
	for i, a := range c.addresses {
		a.Addr = netip.AddrPortFrom(a.Addr.Addr(), uint16(port.Port))
		out[i] = a
	}
	if nodePort {
		all := netip.IPv4Unspecified()
		if ipv6 {
			all = netip.IPv6Unspecified()
		}
		out[length-1] = lb.Address{
			Addr:  netip.AddrPortFrom(all, uint16(port.NodePort)),
			Kind:  lb.NodePort,
			Local: externalLocal(svc),
		}
	}
	return out
}

func externalLocal(svc *corev1.Service) bool {
	return svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// loadBalancerIPs returns the IPs of both families that a load balancer leaves
// as destinations of the packets it sends to nodes. One of ipMode Proxy sends
// them to node ports or endpoints, and its clients must reach it from nodes as
// well (KEP-1860), so its IPs are not captured.
func loadBalancerIPs(svc *corev1.Service) []netip.Addr {
	var ips []netip.Addr
	for i := range svc.Status.LoadBalancer.Ingress {
		ingress := &svc.Status.LoadBalancer.Ingress[i]
		if ingress.IP == "" || ingress.IPMode != nil && *ingress.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		if ip, ok := parseAddr(ingress.IP); ok {
			ips = append(ips, ip)
		}
	}
	return ips
}

// sources returns lb.Address.Sources for the load-balancer IPs of one family.
// Ranges of the other family do not count, nor does what is no CIDR, so that a
// Service with IPv4 ranges alone is open to IPv6, as with kube-proxy.
func sources(ranges []string, ipv6 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range ranges {
		prefix, ok := parsePrefix(text)
		if !ok || prefix.Addr().Is6() != ipv6 {
			continue
		}
		if prefix.Bits() == 0 {
			return nil
		}
		out = append(out, prefix)
	}
	return out
}

// age returns lb.Service.Created: the time of creation, and within its second the UID, which no user chooses. Without
// a time, as in manifests, a Service is older than those with one, and those that came first are the oldest.
func age(svc *corev1.Service, came int64) int64 {
	if svc.CreationTimestamp.IsZero() {
		return came
	}
	within := crc32.ChecksumIEEE([]byte(svc.UID)) % uint32(time.Second)
	return svc.CreationTimestamp.Unix()*int64(time.Second) + int64(within)
}

// affinityTimeout returns what lb.Service.AffinityTimeout asks for.
func affinityTimeout(svc *corev1.Service) int64 {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := int64(corev1.DefaultClientIPServiceAffinitySeconds)
	// The API server refuses a timeout below 1.
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil &&
		*c.ClientIP.TimeoutSeconds > 0 {
		seconds = int64(*c.ClientIP.TimeoutSeconds)
	}
	return seconds * int64(time.Second)
}
