package events

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/lb"
)

// Event is something that happened to the node, or to a Service on it.
type Event struct {
	// Namespace and Service name the Service; if empty it is the node.
	Namespace, Service string

	Warning bool   // an operator should look
	Reason  string // a word for programs, like Starting
	Action  string // what was being done, a word too
	Note    string // a sentence for people, or nothing
}

// Starting is kube-proxy's first event.
func Starting() Event { return starting.ofNode("") }

// KubeProxyRuns says that kube-proxy writes rules beside a Sluice that serves in its place.
func KubeProxyRuns() Event {
	return kubeProxyRuns.ofNode("kube-proxy runs beside Sluice, which removes its rules: delete the DaemonSet " +
		"kube-proxy, or apply the overlay kubeadm again if kubeadm upgrade brought it back")
}

// KubeProxyGone says that it has stopped to.
func KubeProxyGone() Event {
	return kubeProxyGone.ofNode("kube-proxy has written no rules for a minute")
}

// HealthzFailed and MetricsFailed say that the address of /healthz, or of /metrics,
// cannot be bound. The reasons are kube-proxy's.
func HealthzFailed(err error) Event {
	return healthzFailed.ofNode(err.Error())
}

// MetricsFailed is described at HealthzFailed.
func MetricsFailed(err error) Event {
	return metricsFailed.ofNode(err.Error())
}

// CheckFailed says that the health-check node port of a Service cannot be served at
// an address. The reason is kube-proxy's.
func CheckFailed(namespace, service, node string, err error) Event {
	return checkFailed.of(namespace, service, "node %s does not serve the health check: %v", node, err)
}

// CheckServed says that it is served after all.
func CheckServed(namespace, service, node string) Event {
	return checkServed.of(namespace, service, "node %s serves the health check now", node)
}

// PortClaimed says that another process has a node port of a Service. err is what the
// node could not do, like "hold node port 30080 of default/web: ...".
func PortClaimed(id lb.ID, node string, err error) Event {
	return portClaimed.of(id.Namespace, id.Name, "node %s cannot %v", node, err)
}

// PortReleased says that this is over: the port is served, or no longer wanted.
func PortReleased(id lb.ID, f lb.Frontend, node string) Event {
	return portReleased.of(id.Namespace, id.Name, "node port %s on node %s is free again", f, node)
}

// PortsNotServed says that ports of a Service get no socket because file descriptors are few. err says why.
func PortsNotServed(id lb.ID, node string, err error) Event {
	return portsNotServed.of(id.Namespace, id.Name,
		"node %s does not serve %s, and perhaps other ports of the Service: %v; raise its limit of "+
			"open files", node, id, err)
}

// PortsServed says that this is over: all ports of the Service are served, or no longer wanted.
func PortsServed(id lb.ID, node string) Event {
	return portsServed.of(id.Namespace, id.Name, "node %s serves all ports of the Service again", node)
}

// PathFallback says that the requested data path of a Service is unavailable, and which
// one serves it.
func PathFallback(id lb.ID, node, requested, path, reason string) Event {
	return pathUnavailable.of(id.Namespace, id.Name, "node %s serves %s by %s, data path %s is unavailable: %s",
		node, id, path, requested, reason)
}

// PathRestored says that this is over: the requested data path is available, or another
// one is requested, or the Service is gone.
func PathRestored(id lb.ID, node, requested string) Event {
	return pathChosen.of(id.Namespace, id.Name,
		"node %s no longer falls back from data path %s for %s", node, requested, id)
}

// KeptInUserspace says why data path auto serves a Service in user space.
func KeptInUserspace(id lb.ID, node, why string) Event {
	return pathChosen.of(id.Namespace, id.Name, "node %s serves %s in user space, %s", node, id, why)
}

// PolicyFallback says that a policy which a Service requests is unavailable on its data path, and what there is
// instead.
func PolicyFallback(id lb.ID, node, policy, requested, instead, reason string) Event {
	return policyUnavailable.of(id.Namespace, id.Name,
		"node %s serves %s with %s %s, %s requested: %s", node, id, policy, instead, requested,
		reason)
}

// PolicyRestored says that this is over: what is requested is available, or something else is requested, or the Service
// is gone.
func PolicyRestored(id lb.ID, node, policy, requested string) Event {
	return policyApplied.of(id.Namespace, id.Name,
		"node %s no longer falls back from %s %s for %s", node, policy, requested, id)
}

// EndpointsLoop says that endpoints of a Service lead back to Sluice, and are left out: they are addresses of Services,
// or the node's own with a node port.
func EndpointsLoop(id lb.ID, node string, endpoints []netip.AddrPort) Event {
	return endpointsLoop.of(id.Namespace, id.Name,
		"node %s leaves out endpoints %v of %s: they lead back to it; give the endpoints of pods",
		node, endpoints, id)
}

// EndpointsLoopNoMore says that this is over: no endpoint does, or the Service is gone.
func EndpointsLoopNoMore(id lb.ID, node string) Event {
	return endpointsLoopNoMore.of(id.Namespace, id.Name,
		"no endpoint of %s leads back to node %s any more", id, node)
}

// EndpointsUnnumbered says that on data path queue endpoints of a Service have no number, so that the kernel chooses
// where they are chosen.
func EndpointsUnnumbered(of lb.Name, node string, ipv6 bool, endpoints int) Event {
	return endpointsUnnumbered.of(of.Namespace, of.Name,
		"node %s has no number for %d %s endpoints of %s/%s on data path queue, and has the kernel "+
			"choose in their place: all Services there have 65,535, and one --max-service-share of them; request "+
			"another data path", node, endpoints, familyOf(ipv6), of.Namespace, of.Name)
}

// EndpointsNumbered says that this is over.
func EndpointsNumbered(of lb.Name, node string, ipv6 bool) Event {
	return endpointsNumbered.of(of.Namespace, of.Name,
		"node %s has a number for each %s endpoint of %s/%s on data path queue again", node,
		familyOf(ipv6), of.Namespace, of.Name)
}

func familyOf(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

// EndpointEjected says that an endpoint gets no new connections, since it has failed.
func EndpointEjected(e lb.Ejection, node string) Event {
	if e.Check {
		return endpointCheckFailed.of(e.Service.Namespace, e.Service.Name,
			"node %s sends no new connections of %s to endpoint %s, whose check fails: %v",
			node, e.Service, e.Backend, e.Err)
	}
	return endpointEjected.of(e.Service.Namespace, e.Service.Name,
		"node %s sends no new connections of %s to endpoint %s, ejected for up to %v (%d in a row): "+
			"%v", node, e.Service, e.Backend, time.Duration(e.Time), e.Times, e.Err)
}

// EndpointReturned says that this is over.
func EndpointReturned(e lb.Ejection, node string) Event {
	if e.Check {
		return endpointCheckPassed.of(e.Service.Namespace, e.Service.Name,
			"node %s sends connections of %s to endpoint %s again, whose check passes",
			node, e.Service, e.Backend)
	}
	return endpointReturned.of(e.Service.Namespace, e.Service.Name,
		"node %s sends connections of %s to endpoint %s again, which was ejected for %v",
		node, e.Service, e.Backend, time.Duration(e.Time).Round(time.Millisecond))
}

// NeedPods says that clients wait for a Service without endpoints (annotation sluice.io/hold). The reason is that of
// OpenShift's unidling controller.
func NeedPods(id lb.ID, node string) Event {
	return needPods.of(id.Namespace, id.Name, "clients on node %s wait for an endpoint of %s to be ready", node, id)
}

// ClientsRefused says that a policy or a limit has refused so many clients of a Service within a time. Each reason has
// an Action of its own, so that the API server keeps one Event of each.
func ClientsRefused(id lb.ID, node string, why lb.End, clients uint64, within time.Duration) Event {
	word := "clients"
	if clients == 1 {
		word = "client"
	}
	note := fmt.Sprintf("node %s refused %d %s of %s within %v (%s %s): %s", node, clients, word, id,
		within.Round(time.Second), why, why.Reason(), why.Happened())
	if fix := why.Fix(); fix != "" {
		note += "; " + fix
	}
	action := ""
	for word := range strings.SplitSeq(why.Reason(), "_") {
		action += strings.ToUpper(word[:1]) + word[1:]
	}
	e := clientsRefused.of(id.Namespace, id.Name, "%s", strings.ReplaceAll(note, "`", ""))
	e.Action = action
	return e
}

// Wrong says that something of a Service, or of what is read, is rejected, ignored or leads nowhere.
func Wrong(c conditions.Condition, node string) Event {
	e := Event{Namespace: c.Namespace, Service: c.Service, Warning: true, Reason: c.Reason, Action: "ReadObjects",
		Note: c.Text}
	if c.Service != "" {
		e.Note = fmt.Sprintf("node %s: %s", node, c.Text)
	}
	return e
}

// OwnAddress says that an address of a Service is the node's own, so that connections to the
// Service's ports there no longer come to programs of the node.
func OwnAddress(id lb.ID, node string, kind lb.Kind, addr netip.Addr) Event {
	return addressClaimed.of(id.Namespace, id.Name,
		"%s %s is an address of node %s itself: the Service takes its ports from the node's programs",
		kind, addr, node)
}

// AddressTaken says that another Service owns addresses that a Service lists.
func AddressTaken(l lb.Loser, node string) Event {
	t := l.Taken[0]
	note := fmt.Sprintf("node %s does not serve %s %s as %s of %s: it is the %s of %s", node, l.Service.Protocol,
		t.Addr, t.Kind, l.Service, t.As, t.Owner)
	if more := len(l.Taken) - 1; more > 0 {
		note += fmt.Sprintf("; nor %d others", more)
	}
	return addressTaken.of(l.Service.Namespace, l.Service.Name, "%s", note)
}

// AddressTakenNoMore says that this is over: the Service has its addresses, or no longer lists them.
func AddressTakenNoMore(id lb.ID, node string) Event {
	return addressTakenNoMore.of(id.Namespace, id.Name,
		"no other Service owns an address of %s on node %s any more", id, node)
}

// SyncFailed says that a change, or a repair, could not be applied.
func SyncFailed(err error) Event {
	return syncFailed.ofNode(err.Error())
}

// Synced says that a failed sync has succeeded at last.
func Synced() Event {
	return synced.ofNode("all changes are applied")
}
