package events

import "fmt"

// Kind is what all Events of a reason have in common.
type Kind struct {
	Reason, Action string
	Warning        bool
	Means          string // for people
	EndsWith       string // the reason of the Event that says that it is over; until then it is a condition
}

// What Sluice does while it reports. kube-proxy has those of the node.
const (
	startProxy      = "StartKubeProxy"
	syncRules       = "SyncProxyRules"
	listenCheck     = "Listen"
	claimPort       = "ClaimNodePort"
	openPort        = "OpenPort"
	choosePath      = "ChooseDataPath"
	applyPolicies   = "ApplyPolicies"
	chooseEndpoints = "ChooseEndpoints"
	holdConnections = "HoldConnections"
	serveAddress    = "ServeAddress"
)

// The kinds.
var (
	starting = declare(Kind{Reason: "Starting", Action: startProxy, Means: "Sluice starts on the node."})

	syncFailed = declare(Kind{"FailedToSyncProxyRules", syncRules, true,
		"A change cannot be applied. Sluice tries again.", "SyncedProxyRules"})
	synced = declare(Kind{Reason: "SyncedProxyRules", Action: syncRules, Means: "All changes are applied again."})

	kubeProxyRuns = declare(Kind{"KubeProxyRuns", syncRules, true,
		"kube-proxy writes rules on the node, and Sluice removes them. Delete kube-proxy.", "KubeProxyGone"})
	kubeProxyGone = declare(Kind{Reason: "KubeProxyGone", Action: syncRules,
		Means: "kube-proxy has written no rules for a minute."})

	healthzFailed = declare(Kind{Reason: "FailedToStartProxierHealthcheck", Action: startProxy, Warning: true,
		Means: "The address of `--healthz-bind-address` cannot be bound. Sluice tries again every 5 s."})
	metricsFailed = declare(Kind{Reason: "FailedToStartMetricServer", Action: startProxy, Warning: true,
		Means: "The address of `--metrics-bind-address` cannot be bound. Sluice tries again every 5 s."})
	checkFailed = declare(Kind{"FailedToStartServiceHealthcheck", listenCheck, true,
		"The health-check node port of the Service cannot be bound. Sluice tries again every 5 s.",
		"StartedServiceHealthcheck"})
	checkServed = declare(Kind{Reason: "StartedServiceHealthcheck", Action: listenCheck,
		Means: "The health-check node port is served."})

	portClaimed = declare(Kind{"PortAlreadyClaimed", claimPort, true, "Another process has a node port of the Service.",
		"PortReleased"})
	portReleased = declare(Kind{Reason: "PortReleased", Action: claimPort, Means: "The node port is free again."})

	portsNotServed = declare(Kind{"PortsNotServed", openPort, true,
		"Ports of the Service have no socket, because file descriptors are few.", "PortsServed"})
	portsServed = declare(Kind{Reason: "PortsServed", Action: openPort, Means: "All ports of the Service are served."})

	pathUnavailable = declare(Kind{"DataPathUnavailable", choosePath, true,
		"The Service is not on the data path that it requests.", "DataPathChosen"})
	pathChosen = declare(Kind{Reason: "DataPathChosen", Action: choosePath,
		Means: "The Service is on the data path that it requests, or `auto` keeps it in user space."})

	policyUnavailable = declare(Kind{"PolicyUnavailable", applyPolicies, true,
		"The data path of the Service lacks a policy that the Service requests.", "PolicyApplied"})
	policyApplied = declare(Kind{Reason: "PolicyApplied", Action: applyPolicies,
		Means: "The data path has the policy, or the Service no longer requests it."})

	endpointEjected = declare(Kind{Reason: "EndpointEjected", Action: chooseEndpoints, Warning: true,
		Means: "An endpoint failed and gets no new connections for a while."})
	endpointReturned = declare(Kind{Reason: "EndpointReturned", Action: chooseEndpoints,
		Means: "The endpoint is back."})
	endpointCheckFailed = declare(Kind{Reason: "EndpointCheckFailed", Action: chooseEndpoints, Warning: true,
		Means: "An endpoint fails its `readiness-probe` and gets no new connections, unless too few others pass."})
	endpointCheckPassed = declare(Kind{Reason: "EndpointCheckPassed", Action: chooseEndpoints,
		Means: "The endpoint passes its probe again."})

	endpointsLoop = declare(Kind{"EndpointsLoop", chooseEndpoints, true,
		"Endpoints of the Service lead back to Sluice and are left out.", "EndpointsLoopNoMore"})
	endpointsLoopNoMore = declare(Kind{Reason: "EndpointsLoopNoMore", Action: chooseEndpoints,
		Means: "No endpoint leads back to Sluice."})

	endpointsUnnumbered = declare(Kind{"EndpointsUnnumbered", chooseEndpoints, true,
		"Data path `queue` has no number for endpoints of the Service.", "EndpointsNumbered"})
	endpointsNumbered = declare(Kind{Reason: "EndpointsNumbered", Action: chooseEndpoints,
		Means: "Each endpoint has a number again."})

	needPods = declare(Kind{Reason: "NeedPods", Action: holdConnections,
		Means: "Clients wait for an endpoint of the Service (`hold`)."})

	// clientsRefused has an action of its own for each reason of refusing.
	clientsRefused = declare(Kind{Reason: "ClientsRefused", Warning: true,
		Means: "A policy or a limit refused clients. The note says how many, why, and what to do."})

	addressClaimed = declare(Kind{Reason: "NodeAddressClaimed", Action: serveAddress,
		Means: "An address of the Service is the node's own, so the Service takes its ports from programs of the " +
			"node. This is no mistake if you asked for it."})
	addressTaken = declare(Kind{"AddressTaken", serveAddress, true,
		"Another Service owns an address that the Service lists.", "AddressTakenNoMore"})
	addressTakenNoMore = declare(Kind{Reason: "AddressTakenNoMore", Action: serveAddress,
		Means: "No other Service owns an address of the Service."})
)

// kinds are all that are declared, in their order.
var kinds []Kind

func declare(k Kind) Kind {
	kinds = append(kinds, k)
	return k
}

// Kinds returns all kinds, but those of conditions that have no Event of their own (conditions.Reasons).
func Kinds() []Kind { return kinds }

// ofNode returns an Event of the node.
func (k *Kind) ofNode(note string) Event {
	return Event{Warning: k.Warning, Reason: k.Reason, Action: k.Action, Note: note}
}

// of returns an Event of a Service.
func (k *Kind) of(namespace, service, format string, args ...any) Event {
	return Event{Namespace: namespace, Service: service, Warning: k.Warning, Reason: k.Reason, Action: k.Action,
		Note: fmt.Sprintf(format, args...)}
}
