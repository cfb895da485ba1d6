package daemon

import (
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/status"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// control turns objects into what is to be served. convert and checks belong to the
// goroutine that calls desired; what other goroutines read is atomic.
type control struct {
	config  *config.Config
	log     *zap.Logger
	lb      *balancer.Balancer
	objects *objects                     // are stored here
	put     putter                       // of what is wrong with Services
	local   func() ([]netip.Addr, error) // the node's own addresses
	checks  status.ServiceChecks
	convert kube.Converter

	primary  atomic.Pointer[[]netip.Addr] // those of the Node object
	eligible atomic.Bool                  // load balancers may send connections to this node
}

// objects are those of the last conversion.
type objects struct{ atomic.Pointer[kube.Objects] }

// desired converts objects, and serves the health checks that they ask for.
func (c *control) desired(objects kube.Objects) agent.Desired {
	c.objects.Store(&objects)
	n := &c.config.Node
	node := lb.Node{PodCIDRs: n.Pods(), Own: c.config.Document.Own()}
	r := c.convert.Convert(objects, kube.Options{
		ServiceProxyName: c.config.Source.ServiceProxyName,
		Facts:            kube.Facts{NodeName: n.Name, Zone: n.Zone, Node: node},
		Whole:            !c.config.FromAPI(),
	})
	for _, f := range r.Findings {
		c.put("service "+f.Service.Namespace+"/"+f.Service.Name, conditionsOf(f))
	}
	primary := r.Facts.Addresses
	c.primary.Store(&primary)
	// Without a Node manifest nothing speaks against it; a cluster has a Node.
	c.eligible.Store(!r.Facts.Leaving && (r.Facts.Known || !c.config.FromAPI()))
	wanted := c.healthChecks(r.HealthChecks)
	if err := c.checks.Sync(wanted); err != nil {
		c.log.Warn("closing the health check of a Service failed", zap.Error(err))
	}
	checks := slices.SortedFunc(maps.Keys(wanted), netip.AddrPort.Compare)
	return agent.Desired{Services: r.Services, Node: r.Facts.Node, Checks: checks, Changes: changes(r.Changes),
		Hosts: objects.OnNode}
}

// conditionsOf is what there is to say of a Service.
func conditionsOf(f kube.Findings) (out []conditions.Condition) {
	for i := range f.List {
		found := &f.List[i]
		out = append(out, conditions.Condition{Reason: found.Reason, Namespace: f.Service.Namespace,
			Service: f.Service.Name, Text: found.Describe(f.Service.Namespace)})
	}
	return out
}

// changes is what led to a conversion, in the agent's form.
func changes(c kube.Changes) agent.Changes {
	out := agent.Changes{Services: c.Services, Endpoints: c.Endpoints}
	for _, t := range c.Triggers {
		out.Triggers = append(out.Triggers, agent.Trigger(t))
	}
	return out
}

// healthChecks returns where the health checks that Services ask for are served, and
// what is answered there.
func (c *control) healthChecks(checks []kube.HealthCheck) map[netip.AddrPort]status.ServiceHealth {
	if len(checks) == 0 {
		return nil
	}
	wanted := make(map[netip.AddrPort]status.ServiceHealth)
	local, err := c.local()
	if err != nil {
		c.log.Warn("cannot read the node's addresses: no health-check node port is served", zap.Error(err))
		return nil
	}
	for _, ip := range c.nodePorts(local) {
		for _, check := range checks {
			if ip.Is6() != check.IPv6 {
				continue
			}
			wanted[netip.AddrPortFrom(ip, check.Port)] = status.ServiceHealth{
				Namespace: check.Namespace, Name: check.Name,
				LocalEndpoints: func() int { return check.LocalEndpoints(c.drained) }}
		}
	}
	return wanted
}

// drained reports whether an operator has drained an endpoint of a service port.
func (c *control) drained(id lb.ID, at netip.AddrPort) bool {
	_, drained := c.lb.Drains().Of(id, at)
	return drained
}

// nodePorts returns where node ports listen, given the node's addresses.
func (c *control) nodePorts(local []netip.Addr) []netip.Addr {
	var primary []netip.Addr
	if c.config.DataPath.NodePorts.Primary() {
		if known := c.primary.Load(); known != nil {
			primary = *known
		}
		// In kube-proxy's order; without a Node, the address that the world is reached from is likelier than any.
		primary = slices.Concat([]netip.Addr{c.config.DataPath.BindAddress}, primary, node.DefaultAddrs())
	}
	return node.Listenable(c.config.DataPath.NodePorts.Resolve(local, primary), local)
}

// nodes returns the nodes that endpoints run on.
func (o *objects) nodes() []string {
	if objects := o.Load(); objects != nil {
		return objects.NodeNames()
	}
	return nil
}

// uidOf returns the UID of a Service, empty if it is not there.
func (o *objects) uidOf(namespace, name string) types.UID {
	if svc := o.service(namespace, name); svc != nil {
		return svc.UID
	}
	return ""
}

// leaving reports whether a Service is being deleted, but waits for what a finalizer stands for.
func (o *objects) leaving(namespace, name string) bool {
	svc := o.service(namespace, name)
	return svc != nil && svc.DeletionTimestamp != nil
}

// service returns a Service, nil if it is not there.
func (o *objects) service(namespace, name string) *corev1.Service {
	if objects := o.Load(); objects != nil {
		for svc := range objects.Services.All() {
			if svc.Name == name && svc.Namespace == namespace {
				return svc
			}
		}
	}
	return nil
}
