package kube

//lint:file-ignore SA1019 Endpoints are deprecated, but a Service without EndpointSlices still has nothing else.

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/lb"
)

// Objects is everything that Convert reads. The objects may be shared with
// their source (an informer's store, a manifest loader) and are never changed.
type Objects struct {
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	// Endpoints speak only for a Service that has no EndpointSlice, as
	// hand-written manifests of old do; a cluster mirrors them into slices.
	Endpoints []*corev1.Endpoints
}

// Len returns the number of objects of all kinds.
func (o Objects) Len() int { return len(o.Services) + len(o.Slices) + len(o.Endpoints) }

// Convert returns one lb.Service for each port of each Service in each address
// family the Service has a cluster IP of, ordered by ID, each ID once. A
// service port that nobody can answer is still there, with no backends, so that
// its clients can be refused rather than left without an answer. Backends are
// ordered by address and each address appears once.
//
// Left out, following kube-proxy 1.36: Services that are headless, of type
// ExternalName or still without a cluster IP; EndpointSlices of type FQDN or
// without the label kubernetes.io/service-name; slice ports without a name or
// number; all but the first address of an endpoint; addresses that are not IPs.
func Convert(o Objects) []lb.Service {
	sources := endpointSources(o)
	out := make([]lb.Service, 0, len(o.Services))
	for _, svc := range o.Services {
		source := sources[objectKey{svc.Namespace, svc.Name}]
		for _, ip := range ClusterIPs(svc) {
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
					IPv6:      ip.Is6(),
				}
				out = append(out, lb.Service{
					ID:              id,
					Frontends:       frontends(port, ip),
					Backends:        source.backends(id),
					AffinityTimeout: affinityTimeout(svc),
				})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b lb.Service) int { return compareIDs(a.ID, b.ID) })
	return slices.CompactFunc(out, func(a, b lb.Service) bool { return a.ID == b.ID })
}

// ClusterIPs returns the cluster IPs at which svc is served: at most one of
// each family, the first named first. It is empty for a Service that no proxy
// serves (headless, ExternalName, no address yet).
func ClusterIPs(svc *corev1.Service) []netip.Addr {
	spec := &svc.Spec
	if spec.Type == corev1.ServiceTypeExternalName || spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	texts := spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{spec.ClusterIP}
	}
	var ips []netip.Addr
	for _, text := range texts {
		ip, ok := parseAddr(text)
		if !ok || slices.ContainsFunc(ips, func(other netip.Addr) bool { return other.Is6() == ip.Is6() }) {
			continue
		}
		ips = append(ips, ip)
	}
	return ips
}

// frontends returns the addresses at which clients ask for port in the family
// of clusterIP. Node ports, external IPs and load-balancer IPs belong here.
func frontends(port *corev1.ServicePort, clusterIP netip.Addr) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(clusterIP, uint16(port.Port))}
}

// affinityTimeout returns what lb.Service.AffinityTimeout asks for.
func affinityTimeout(svc *corev1.Service) int64 {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := int64(corev1.DefaultClientIPServiceAffinitySeconds)
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = int64(*c.ClientIP.TimeoutSeconds)
	}
	return seconds * int64(time.Second)
}

func compareIDs(a, b lb.ID) int {
	return cmp.Or(
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
		strings.Compare(a.Port, b.Port),
		cmp.Compare(a.Protocol, b.Protocol),
		compareBools(a.IPv6, b.IPv6),
	)
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

func protocolOf(p corev1.Protocol) (lb.Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP, "": // the API's default
		return lb.TCP, true
	case corev1.ProtocolUDP:
		return lb.UDP, true
	case corev1.ProtocolSCTP:
		return lb.SCTP, true
	}
	return 0, false
}

func validPort(port int32) bool { return port >= 1 && port <= 65535 }

// parseAddr reads an IP address as generously as the API server long did: IPv4
// numbers may have leading zeros, which are decimal, and an IPv4-mapped IPv6
// address is IPv4. Objects stored before the API's validation became strict
// still hold such text.
func parseAddr(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		octets := strings.Split(text, ".")
		if len(octets) != 4 {
			return netip.Addr{}, false
		}
		for i, octet := range octets {
			if trimmed := strings.TrimLeft(octet, "0"); trimmed != "" {
				octets[i] = trimmed
			} else if octet != "" {
				octets[i] = "0"
			}
		}
		if addr, err = netip.ParseAddr(strings.Join(octets, ".")); err != nil {
			return netip.Addr{}, false
		}
	}
	return addr.Unmap(), addr.Zone() == ""
}
