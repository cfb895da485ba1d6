package status

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"
)

// ServiceHealth is what the health-check node port of a Service answers to the
// load balancer in front of it.
type ServiceHealth struct {
	Namespace, Name string
	LocalEndpoints  func() int // asked with each request
}

// ServiceChecks serves the health-check node ports of Services with
// externalTrafficPolicy Local (spec.healthCheckNodePort): 200 while the node has
// endpoints of the Service and the proxy is healthy, otherwise 503. Its methods are
// called by one goroutine.
type ServiceChecks struct {
	// Healthy says whether the proxy itself is. It is asked with each request.
	Healthy func() bool

	// Open opens the sockets, as net.Listen does.
	Open func(network, addr string) (net.Listener, error)
	// Failed is called when a check cannot be served, and once more with nil when it
	// is served after all. It may be called from any goroutine.
	Failed func(of ServiceHealth, addr netip.AddrPort, err error)
	// Retry is how often a check that cannot be served is tried again. 0: every 5 s.
	Retry time.Duration

	servers map[netip.AddrPort]*serviceCheck
}

type serviceCheck struct {
	*Server
	health atomic.Pointer[ServiceHealth]
}

// Sync serves exactly the checks wanted, by address and port. An address that cannot
// be bound is retried until it is no longer wanted.
func (c *ServiceChecks) Sync(wanted map[netip.AddrPort]ServiceHealth) error {
	var errs []error
	for addr, s := range c.servers {
		was, now := s.health.Load(), wanted[addr] // the zero value if it is no longer wanted
		if was.Namespace != now.Namespace || was.Name != now.Name {
			errs = append(errs, s.Close())
			delete(c.servers, addr)
		}
	}
	for addr, health := range wanted {
		if s, ok := c.servers[addr]; ok {
			s.health.Store(&health)
			continue
		}
		if c.servers == nil {
			c.servers = make(map[netip.AddrPort]*serviceCheck)
		}
		c.servers[addr] = c.serve(addr, health)
	}
	return errors.Join(errs...)
}

// serve begins to answer for a Service.
func (c *ServiceChecks) serve(addr netip.AddrPort, health ServiceHealth) *serviceCheck {
	s := new(serviceCheck)
	s.health.Store(&health)
	network := "tcp4" // with [::] as "tcp" it would take IPv4 too
	if addr.Addr().Is6() {
		network = "tcp6"
	}
	s.Server, _ = Binding{Network: network, Addr: addr.String(), Handler: c.handler(s), Open: c.Open, Retry: c.Retry,
		Failed: func(err error) { c.Failed(health, addr, err) }}.Serve() // it does not fail, but calls Failed
	return s
}

// Close ends all of them.
func (c *ServiceChecks) Close() error { return c.Sync(nil) }

// handler answers on any path, as kube-proxy does.
func (c *ServiceChecks) handler(s *serviceCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		health := s.health.Load()
		healthy, local := c.Healthy(), health.LocalEndpoints()
		code := http.StatusServiceUnavailable
		if healthy && local > 0 {
			code = http.StatusOK
		}
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
		writeJSON(w, code, map[string]any{
			"service":             map[string]string{"namespace": health.Namespace, "name": health.Name},
			"localEndpoints":      local,
			"serviceProxyHealthy": healthy,
		})
	})
}
