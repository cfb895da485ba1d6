package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
)

// ServiceHealth is what the health-check node port of a Service answers to the
// load balancer in front of it.
type ServiceHealth struct {
	Namespace, Name string
	LocalEndpoints  int
}

// ServiceChecks serves the health-check node ports of Services with
// externalTrafficPolicy Local (spec.healthCheckNodePort): 200 while the node has
// endpoints of the Service and the proxy is healthy, otherwise 503. Its methods are
// called by one goroutine.
type ServiceChecks struct {
	// Healthy says whether the proxy itself is. It is asked with each request.
	Healthy func() bool

	servers map[netip.AddrPort]*serviceCheck
}

type serviceCheck struct {
	*Server
	health atomic.Pointer[ServiceHealth]
}

// Sync serves exactly the checks wanted, by address and port. The error names the
// addresses that could not be had; all others are served, and the next Sync tries again.
func (c *ServiceChecks) Sync(wanted map[netip.AddrPort]ServiceHealth) error {
	var errs []error
	for addr, s := range c.servers {
		if _, ok := wanted[addr]; !ok {
			errs = append(errs, s.Close())
			delete(c.servers, addr)
		}
	}
	for addr, health := range wanted {
		s, ok := c.servers[addr]
		if !ok {
			s = new(serviceCheck)
			var err error
			if s.Server, err = ListenOn(addr, c.handler(s)); err != nil {
				errs = append(errs, fmt.Errorf("serve health check of %s/%s: %w", health.Namespace, health.Name, err))
				continue
			}
			if c.servers == nil {
				c.servers = make(map[netip.AddrPort]*serviceCheck)
			}
			c.servers[addr] = s
		}
		s.health.Store(&health)
	}
	return errors.Join(errs...)
}

// Close ends all of them.
func (c *ServiceChecks) Close() error { return c.Sync(nil) }

// handler answers on any path, as kube-proxy does. Until its first Sync is done
// there is nothing to say.
func (c *ServiceChecks) handler(s *serviceCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		health := s.health.Load()
		if health == nil {
			health = new(ServiceHealth)
		}
		healthy := c.Healthy()
		code := http.StatusServiceUnavailable
		if healthy && health.LocalEndpoints > 0 {
			code = http.StatusOK
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(health.LocalEndpoints))
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"service":             map[string]string{"namespace": health.Namespace, "name": health.Name},
			"localEndpoints":      health.LocalEndpoints,
			"serviceProxyHealthy": healthy,
		})
	})
}
