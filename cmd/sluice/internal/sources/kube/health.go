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

	// Local are the endpoints of this node that are ready, of all ports, ordered by IP. Those that
	// terminate do not count, although they still serve what comes: the load
	// balancer is to use other nodes. Nor do those in maintenance.
	Local []LocalEndpoint
}

// LocalEndpoint is an endpoint of a service port.
type LocalEndpoint struct {
	Service lb.ID
	Addr    netip.AddrPort
}

// LocalEndpoints returns the number of IPs that Local has, but for those that out says are out at each
// of their ports: to an endpoint that an operator has drained the load balancer is to send nothing either.
func (h *HealthCheck) LocalEndpoints(out func(lb.ID, netip.AddrPort) bool) (n int) {
	var last netip.Addr // that was counted
	for i := range h.Local {
		e := &h.Local[i]
		if ip := e.Addr.Addr(); ip != last && !out(e.Service, e.Addr) {
			n, last = n+1, ip
		}
	}
	return n
}

// checkHealth appends the HealthCheck of svc, if it has one, in a family whose
// ports are services.
func (c *converter) checkHealth(svc *corev1.Service, ipv6 bool, services []*lb.Service) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || !externalLocal(svc) ||
		!validPort(svc.Spec.HealthCheckNodePort) {
		return
	}
	if len(services) > 0 {
		services[0].CheckPort = uint16(svc.Spec.HealthCheckNodePort)
	}
	var local []LocalEndpoint
	for i := range services {
		for _, b := range services[i].Backends {
			if b.Local && b.Ready && !b.Maintenance {
				local = append(local, LocalEndpoint{services[i].ID, b.Addr})
			}
		}
	}
	slices.SortStableFunc(local, func(a, b LocalEndpoint) int { return a.Addr.Addr().Compare(b.Addr.Addr()) })
	c.healthChecks = append(c.healthChecks, HealthCheck{
		Namespace: svc.Namespace,
		Name:      svc.Name,
		IPv6:      ipv6,
		Port:      uint16(svc.Spec.HealthCheckNodePort),
		Local:     local,
	})
}
