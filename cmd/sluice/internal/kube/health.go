package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-lb/sluice/lb"
)

// HealthCheck is what a healthCheckNodePort answers to the load balancer of a
// Service with externalTrafficPolicy Local, which sends traffic only to nodes
// that have endpoints. A dual-stack Service has one for each family, on the same
// port, since its endpoints are counted for each.
type HealthCheck struct {
	Namespace string
	Name      string // of the Service
	IPv6      bool
	Port      uint16 // of the TCP listener, on the node's addresses of this family

	// LocalEndpoints is the number of IPs of this node that are ready. Those that
	// terminate do not count, although they still serve what comes: the load
	// balancer is to use other nodes.
	LocalEndpoints int
}

// checkHealth appends the HealthCheck of svc, if it has one, in a family whose
// ports are services.
func (c *converter) checkHealth(svc *corev1.Service, ipv6 bool, services []*lb.Service) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || !externalLocal(svc) ||
		!validPort(svc.Spec.HealthCheckNodePort) {
		return
	}
	var ips []netip.Addr
	for i := range services {
		for _, b := range services[i].Backends {
			if b.Local && b.Ready && !b.Maintenance {
				ips = append(ips, b.Addr.Addr())
			}
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	c.healthChecks = append(c.healthChecks, HealthCheck{
		Namespace:      svc.Namespace,
		Name:           svc.Name,
		IPv6:           ipv6,
		Port:           uint16(svc.Spec.HealthCheckNodePort),
		LocalEndpoints: len(slices.Compact(ips)),
	})
}
