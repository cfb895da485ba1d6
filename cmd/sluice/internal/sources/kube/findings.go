package kube

//lint:file-ignore SA1019 see Objects.Endpoints

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/nearest"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/lb"
)

// Finding is something of an object that is ignored or leads nowhere.
type Finding struct {
	Reason string // as conditions have it
	Kind   string // of the object: Service, EndpointSlice or Endpoints
	Name   string // of the object, in the namespace of the Service
	Field  string // that is meant; may be empty
	Text   string // what is wrong, and what to do
}

// Findings are all that there is to say of one Service now: nothing, if List is empty.
type Findings struct {
	Service lb.Name
	List    []Finding
}

// Each Service has at most this many findings of its endpoints.
const mostFindings = 8

// The kinds of objects.
const (
	kindService   = "Service"
	kindSlice     = "EndpointSlice"
	kindEndpoints = "Endpoints"
)

// find finds out what is to be said of a group that was converted.
func (k *Converter) find(g *group) {
	for _, i := range g.ignored {
		kind, name := kindService, g.name
		if i.Object != "" {
			kind, name, _ = strings.Cut(i.Object, " ")
		}
		field := "metadata.annotations[" + i.Annotation + "]"
		g.findings = append(g.findings, Finding{conditions.AnnotationIgnored, kind, name, field,
			fmt.Sprintf("annotation %s is ignored: %v", i.Annotation, i)})
	}
	if g.leftOut.endpoints > 0 {
		kind, name := kindEndpoints, g.name
		for _, s := range g.slices {
			kind, name = kindSlice, s.Name
			if slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
				return slices.Contains(e.Addresses, g.leftOut.example)
			}) {
				break
			}
		}
		g.findings = append(g.findings, Finding{conditions.EndpointsLeftOut, kind, name, "", g.leftOut.String()})
	}
	if g.service != nil && len(g.service.Spec.Ports) > maxPorts {
		g.findings = append(g.findings, Finding{conditions.PortsLeftOut, kindService, g.name, "spec.ports",
			fmt.Sprintf("it has %d ports, and the first %d are served: divide it",
				len(g.service.Spec.Ports), maxPorts)})
	}
	if k.whole && g.service != nil {
		g.misplaced()
	}
	switch {
	case !k.whole || g.foreign:
	case g.service == nil && (len(g.slices) > 0 || g.old != nil):
		k.orphans(g)
	case len(g.services) > 0:
		g.unmatched()
	}
}

// misplaced finds policies among the labels.
func (g *group) misplaced() {
	names := slices.Sorted(maps.Keys(g.service.Labels))
	foreign := func(n string) bool { return !strings.HasPrefix(n, policies.Prefix) }
	for _, name := range slices.DeleteFunc(names, foreign) {
		g.findings = append(g.findings, Finding{conditions.AnnotationIgnored, kindService, g.name,
			"metadata.labels[" + name + "]", "label " + name + " is ignored: write it in metadata.annotations"})
	}
}

// orphans finds objects whose Service is not there.
func (k *Converter) orphans(g *group) {
	const many = 500 // of which the nearest is not looked for
	why := fmt.Sprintf("there is no Service %s/%s", g.namespace, g.name)
	if len(k.own) < many {
		names := func(yield func(string) bool) {
			for _, o := range k.own {
				if o.namespace == g.namespace && !yield(o.name) {
					return
				}
			}
		}
		if near := nearest.Of(g.name, names); near != "" {
			why += ": did you mean " + near + "?"
		}
	}
	for _, s := range g.slices[:min(len(g.slices), mostFindings)] {
		g.findings = append(g.findings, Finding{conditions.EndpointsUnmatched, kindSlice, s.Name,
			"metadata.labels[" + discoveryv1.LabelServiceName + "]", "its endpoints are not used: " + why})
	}
	if len(g.slices) == 0 {
		g.findings = append(g.findings, Finding{conditions.EndpointsUnmatched, kindEndpoints, g.old.Name,
			"metadata.name", "its endpoints are not used: " + why})
	}
}

// port is what a port of a Service and one of its EndpointSlices must have in common.
type port struct {
	name     string
	protocol lb.Protocol
}

// unmatched finds ports that do not match: of EndpointSlices, and of the Service if none of those leads nowhere.
func (g *group) unmatched() {
	has := make(map[port]bool, len(g.service.Spec.Ports)) // whether a slice has it, too
	for i := range g.service.Spec.Ports {
		p := &g.service.Spec.Ports[i]
		protocol, _ := protocolOf(p.Protocol)
		has[port{p.Name, protocol}] = false
	}
	ours := len(g.findings)
	add := func(f Finding) {
		if len(g.findings) < ours+mostFindings {
			g.findings = append(g.findings, f)
		}
	}
	match := func(kind, object, field, name string, of corev1.Protocol) {
		protocol, _ := protocolOf(of)
		p := port{name, protocol}
		if _, ok := has[p]; ok {
			has[p] = true
			return
		}
		add(Finding{conditions.EndpointsUnmatched, kind, object, field, g.unknownPort(p)})
	}
	for _, s := range g.slices {
		for i := range s.Ports {
			match(kindSlice, s.Name, fmt.Sprintf("ports[%d].name", i), valueOr(s.Ports[i].Name, ""),
				valueOr(s.Ports[i].Protocol, ""))
		}
	}
	if len(g.slices) == 0 {
		if g.old == nil {
			add(Finding{conditions.NoEndpointSlices, kindService, g.name, "", fmt.Sprintf("it has no endpoints: "+
				"write an EndpointSlice with the label %s: %s", discoveryv1.LabelServiceName, g.name)})
			return
		}
		for i := range g.old.Subsets {
			for j, p := range g.old.Subsets[i].Ports {
				match(kindEndpoints, g.old.Name, fmt.Sprintf("subsets[%d].ports[%d].name", i, j), p.Name, p.Protocol)
			}
		}
	}
	if f, found := g.nowhere(); found {
		add(f)
	}
	if len(g.findings) > ours {
		return
	}
	for i := range g.service.Spec.Ports {
		p := &g.service.Spec.Ports[i]
		protocol, _ := protocolOf(p.Protocol)
		if !has[port{p.Name, protocol}] {
			add(Finding{conditions.EndpointsUnmatched, kindService, g.name, fmt.Sprintf("spec.ports[%d].name", i),
				fmt.Sprintf("port %s has no endpoints: no EndpointSlice of the Service has a port of this name and "+
					"protocol", nameOf(port{p.Name, protocol}))})
		}
	}
}

// nowhere finds out whether only endpoints of a node are to serve, and none has a node.
func (g *group) nowhere() (f Finding, found bool) {
	spec, field := &g.service.Spec, "" // the field with the policy
	switch {
	case spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal:
		field = "spec.externalTrafficPolicy"
	case valueOr(spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal:
		field = "spec.internalTrafficPolicy"
	default:
		return f, false
	}
	endpoints := 0
	for _, s := range g.slices {
		for i := range s.Endpoints {
			if endpoints++; valueOr(s.Endpoints[i].NodeName, "") != "" {
				return f, false
			}
		}
	}
	if endpoints == 0 {
		return f, false
	}
	return Finding{conditions.EndpointsUnmatched, kindService, g.name, field, "only endpoints of the node may " +
		"serve it, " +
		"and no endpoint has a node: write endpoints[].nodeName into its EndpointSlices"}, true
}

// unknownPort says that a port of endpoints is none of the Service, and which one may be meant.
func (g *group) unknownPort(p port) string {
	names := make([]string, 0, len(g.service.Spec.Ports))
	for i := range g.service.Spec.Ports {
		names = append(names, g.service.Spec.Ports[i].Name)
	}
	text := fmt.Sprintf("port %s is none of Service %s/%s, so its endpoints are not used", nameOf(p), g.namespace,
		g.name)
	const few = 5
	switch near := nearest.Of(p.name, slices.Values(names)); {
	case near != "":
		return text + ": did you mean " + near + "?"
	case len(names) <= few:
		for i := range g.service.Spec.Ports {
			sp := &g.service.Spec.Ports[i]
			protocol, _ := protocolOf(sp.Protocol)
			names[i] = nameOf(port{sp.Name, protocol})
		}
		return text + ": it has port " + strings.Join(names, ", port ")
	}
	return text
}

func nameOf(p port) string {
	if p.name == "" {
		return "without a name (" + p.protocol.String() + ")"
	}
	return fmt.Sprintf("%s (%s)", p.name, p.protocol)
}

// Describe returns the text with the object that it is about.
func (f *Finding) Describe(namespace string) string {
	return fmt.Sprintf("%s %s/%s: %s", f.Kind, namespace, f.Name, f.Text)
}
