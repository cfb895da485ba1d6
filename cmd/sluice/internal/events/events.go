package events

import (
	"fmt"

	"github.com/sluice-lb/sluice/lb"
)

// Event is something that happened to the node, or to a Service on it.
type Event struct {
	// Namespace and Service name the Service; if empty it is the node.
	Namespace, Service string

	Warning bool   // somebody should look
	Reason  string // a word for programs, like Starting
	Action  string // what was being done, a word too
	Note    string // a sentence for people, or nothing
}

// Recorder tells of events: API and Log.
type Recorder interface {
	// Record tells of e. It does not block, and may be called from anywhere.
	Record(e Event)
	// Stats counts what was told, and what was dropped because there was too much.
	Stats() (recorded, dropped uint64)
	// Close gives up what has not been told yet.
	Close()
}

// Starting is kube-proxy's first event.
func Starting() Event { return Event{Reason: "Starting", Action: "StartKubeProxy"} }

// HealthzFailed and MetricsFailed say that the address of /healthz, or of /metrics,
// cannot be listened on. The reasons are kube-proxy's.
func HealthzFailed(err error) Event {
	return Event{Warning: true, Reason: "FailedToStartProxierHealthcheck", Action: "StartKubeProxy", Note: err.Error()}
}

// MetricsFailed is described at HealthzFailed.
func MetricsFailed(err error) Event {
	return Event{Warning: true, Reason: "FailedToStartMetricServer", Action: "StartKubeProxy", Note: err.Error()}
}

// CheckFailed says that the health-check node port of a Service cannot be served at
// an address. The reason is kube-proxy's.
func CheckFailed(namespace, service, node string, err error) Event {
	return Event{Namespace: namespace, Service: service, Warning: true, Reason: "FailedToStartServiceHealthcheck", Action: "Listen",
		Note: fmt.Sprintf("node %s does not serve the health check: %v", node, err)}
}

// CheckServed says that it is served after all.
func CheckServed(namespace, service, node string) Event {
	return Event{Namespace: namespace, Service: service, Reason: "StartedServiceHealthcheck", Action: "Listen",
		Note: fmt.Sprintf("node %s serves the health check now", node)}
}

// PortClaimed says that somebody else has a node port of a Service. err is what the
// node could not do, like "hold node port 30080 of default/web: ...".
func PortClaimed(id lb.ID, node string, err error) Event {
	return Event{Namespace: id.Namespace, Service: id.Name, Warning: true, Reason: "PortAlreadyClaimed", Action: "ClaimNodePort",
		Note: fmt.Sprintf("node %s cannot %v", node, err)}
}

// PortReleased says that this is over: the port is served, or no longer wanted.
func PortReleased(id lb.ID, f lb.Frontend, node string) Event {
	return Event{Namespace: id.Namespace, Service: id.Name, Reason: "PortReleased", Action: "ClaimNodePort",
		Note: fmt.Sprintf("node %s has no conflict over node port %s any more", node, f)}
}

// PathUnmet says that a Service is not on the data path that it wishes, but on another.
func PathUnmet(id lb.ID, node, wish, instead, reason string) Event {
	return Event{Namespace: id.Namespace, Service: id.Name, Warning: true, Reason: "DataPathUnavailable", Action: "ChooseDataPath",
		Note: fmt.Sprintf("node %s forwards %s by %s instead of %s: %s", node, id, instead, wish, reason)}
}

// PathMet says that this is over: the wish is met, or has changed, or the Service is gone.
func PathMet(id lb.ID, node, wish string) Event {
	return Event{Namespace: id.Namespace, Service: id.Name, Reason: "DataPathChosen", Action: "ChooseDataPath",
		Note: fmt.Sprintf("node %s has no reason any more to keep %s from data path %s", node, id, wish)}
}

// SyncFailed says that a change, or a repair, could not be brought into force.
func SyncFailed(err error) Event {
	return Event{Warning: true, Reason: "FailedToSyncProxyRules", Action: "SyncProxyRules", Note: err.Error()}
}

// Synced says that what could not be brought into force is so now.
func Synced() Event {
	return Event{Reason: "SyncedProxyRules", Action: "SyncProxyRules", Note: "everything is in force now"}
}
