package kube

//lint:file-ignore SA1019 see Objects.Endpoints

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// Converter makes services of objects that mostly stay the same. It looks for
// objects that were not there the last time, or are not there any more, and converts
// only the Services that those belong to, so that a change costs no more than
// comparing and copying pointers. The zero Converter is ready; it is for one
// goroutine. Objects that it has seen, and the lists they were in, must not be
// written to.
type Converter struct {
	last      Objects
	proxyName string
	facts     Facts

	groups map[objectKey]*group
	own    []*group // those with a Service of ours, by namespace and name
	whole  bool     // Options.Whole

	services     lists.List[*lb.Service] // of own, as the last Result has them
	healthChecks []HealthCheck
	listed       bool // both have been made

	dirty []*group
	twice bool  // two objects had one name
	came  int64 // Services so far
}

type objectKey struct{ namespace, name string }

func (k objectKey) compare(o objectKey) int {
	return cmp.Or(strings.Compare(k.namespace, o.namespace), strings.Compare(k.name, o.name))
}

// group is what belongs to one Service, and what it has come to.
type group struct {
	objectKey
	service *corev1.Service // nil if there is none of ours
	slices  []*discoveryv1.EndpointSlice
	old     *corev1.Endpoints // used only while slices is empty
	dirty   bool              // to be converted again
	came    int64             // which Service of the Converter it was, counted from 1; 0: there is none
	listed  bool              // in Converter.own

	services     []*lb.Service
	at           int // in Converter.services
	healthChecks []HealthCheck
	foreign      bool // there is a Service, and it is another proxy's
	leftOut      leftOut
	ignored      []policies.Ignored
	findings     []Finding
}

// Convert applies the rules of the API, as kube-proxy 1.36 reads them, to o.
//
// A service port without an endpoint is still in the result, with no
// backends, so that its clients can be refused rather than left without an
// answer. Its addresses stand in the order in which kube-proxy matches them:
// cluster IP, external IPs, load-balancer IPs, node port; an IP that comes to a
// Service in two ways is there once. As an external IP and a load-balancer IP it is a
// load-balancer IP that is open to everybody. A node port is the
// unspecified address; which addresses of the node it stands for is not decided
// here. Backends are ordered by address and each address appears once.
//
// Left out are: Services of another proxy, headless, or of type ExternalName;
// external and load-balancer IPs of a family that a Service with a cluster IP
// has none of; load-balancer IPs of ipMode Proxy; EndpointSlices
// of type FQDN, of headless Services or without the label
// kubernetes.io/service-name; slice ports without a name or number; all but the
// first address of an endpoint; addresses that are not IPs, or are 0.0.0.0 or ::;
// endpoints at loopback, link-local or multicast addresses (Result.Findings).
func (k *Converter) Convert(o Objects, options Options) Result {
	facts := options.Facts.completedBy(o.Nodes)
	if options.ServiceProxyName == "" { // else other addresses in there are those of another proxy
		facts.ServiceCIDRs = serviceCIDRs(o.ServiceCIDRs)
	}
	if k.twice || k.groups == nil || options.ServiceProxyName != k.proxyName {
		*k = Converter{groups: make(map[objectKey]*group, o.Services.Len()), proxyName: options.ServiceProxyName,
			facts: facts, whole: options.Whole}
	}
	changes := k.compare(o)
	if !facts.equal(k.facts) {
		for _, g := range k.own {
			k.touch(g)
		}
	}
	k.facts = facts
	same := k.sort()
	r := Result{Facts: facts, Changes: changes}
	if same = k.convert(&r) && same; same && k.listed {
		k.services = k.services.With(k.changed)
	} else {
		k.list()
	}
	r.Services, r.HealthChecks = k.services, k.healthChecks
	clear(k.dirty)
	k.dirty = k.dirty[:0]
	return r
}

// changed yields the services of groups that are dirty, at their positions.
func (k *Converter) changed(yield func(int, *lb.Service) bool) {
	for _, g := range k.dirty {
		if !g.listed {
			continue
		}
		for i, s := range g.services {
			if !yield(g.at+i, s) {
				return
			}
		}
	}
}

// list makes the lists of all groups anew: to look at each of a hundred thousand takes 10 ms.
func (k *Converter) list() {
	services := make([]*lb.Service, 0, len(k.own)+len(k.own)/8) // some have several ports
	k.healthChecks = nil
	for _, g := range k.own {
		g.at = len(services)
		services = append(services, g.services...)
		k.healthChecks = append(k.healthChecks, g.healthChecks...)
	}
	k.services, k.listed = lists.Of(services), true
}

// compare finds out which groups are not what they were.
func (k *Converter) compare(o Objects) (c Changes) {
	gone, come := lists.Difference(k.last.Services, o.Services)
	c.Services = changed(gone, come, k.ours)
	for _, svc := range gone {
		k.setService(svc, nil)
	}
	for _, svc := range come {
		k.setService(svc, svc)
	}
	goneSlices, comeSlices := lists.Difference(k.last.Slices, o.Slices)
	c.Endpoints = changed(goneSlices, comeSlices, func(*discoveryv1.EndpointSlice) bool { return true })
	c.Triggers = triggersOf(comeSlices)
	serviceOf := func(s *discoveryv1.EndpointSlice) string { return s.Labels[discoveryv1.LabelServiceName] }
	changeGroups(k, goneSlices, serviceOf, func(g *group, gone *discoveryv1.EndpointSlice) {
		g.slices = slices.DeleteFunc(g.slices, func(s *discoveryv1.EndpointSlice) bool { return s == gone })
	})
	changeGroups(k, comeSlices, serviceOf, func(g *group, come *discoveryv1.EndpointSlice) {
		g.slices = append(g.slices, come)
	})
	goneOld, comeOld := lists.Difference(lists.Of(k.last.Endpoints), lists.Of(o.Endpoints))
	c.Endpoints += changed(goneOld, comeOld, func(*corev1.Endpoints) bool { return true })
	changeGroups(k, goneOld, (*corev1.Endpoints).GetName, func(g *group, _ *corev1.Endpoints) { g.old = nil })
	changeGroups(k, comeOld, (*corev1.Endpoints).GetName, func(g *group, old *corev1.Endpoints) {
		k.twice = k.twice || g.old != nil
		g.old = old
	})
	k.last = o
	return c
}

// changeGroups changes the groups of objects with endpoints, but for those labelled as
// headless, which are for DNS: kube-proxy does not watch them either, whatever their
// Service is.
func changeGroups[T metav1.Object](k *Converter, list []T, service func(T) string, change func(*group, T)) {
	for _, o := range list {
		name := service(o)
		if _, headless := o.GetLabels()[corev1.IsHeadlessService]; !headless && name != "" {
			g := k.group(objectKey{o.GetNamespace(), name})
			change(g, o)
			k.touch(g)
		}
	}
}

// ours reports whether a Service is one that we serve.
func (k *Converter) ours(svc *corev1.Service) bool {
	// An empty value is a name too, of no proxy.
	name, labelled := svc.Labels[labelServiceProxyName]
	return name == k.proxyName && labelled == (k.proxyName != "")
}

// setService makes to, which may be nil, the Service of the group that svc is in, if svc
// is ours.
func (k *Converter) setService(svc, to *corev1.Service) {
	if !k.ours(svc) {
		if k.whole {
			g := k.group(objectKey{svc.Namespace, svc.Name})
			g.foreign = to != nil
			k.touch(g)
		}
		return
	}
	g := k.group(objectKey{svc.Namespace, svc.Name})
	k.twice = k.twice || to != nil && g.service != nil
	g.service = to
	if to != nil && g.came == 0 {
		k.came++
		g.came = k.came
	}
	k.touch(g)
}

func (k *Converter) group(key objectKey) *group {
	g := k.groups[key]
	if g == nil {
		g = &group{objectKey: key}
		k.groups[key] = g
	}
	return g
}

func (k *Converter) touch(g *group) {
	if !g.dirty {
		g.dirty = true
		k.dirty = append(k.dirty, g)
	}
}

// sort brings own up to date, and reports whether it was.
func (k *Converter) sort() (same bool) {
	same = true
	if slices.ContainsFunc(k.dirty, func(g *group) bool { return g.listed && g.service == nil }) {
		k.own = slices.DeleteFunc(k.own, func(g *group) bool {
			g.listed = g.service != nil
			return !g.listed
		})
		same = false
	}
	for _, g := range k.dirty { // the first time in the order that they come in: it is cheap to append
		if g.service != nil && !g.listed {
			g.listed = true
			at, _ := slices.BinarySearchFunc(k.own, g.objectKey, func(a *group, key objectKey) int {
				return a.compare(key)
			})
			k.own = slices.Insert(k.own, at, g)
			same = false
		}
	}
	return same
}

// convert converts what is dirty, and drops groups that nothing is left of. It notes in r what is to be said of them,
// where that has changed. It reports whether each has as many ports as before, and nothing to do with health checks.
func (k *Converter) convert(r *Result) (same bool) {
	c := converter{facts: k.facts}
	same = true
	for _, g := range k.dirty {
		was, ports, checked := g.findings, len(g.services), g.healthChecks != nil
		g.dirty, g.services, g.healthChecks = false, nil, nil
		g.ignored, g.leftOut, g.findings = nil, leftOut{}, nil
		switch {
		case g.service != nil:
			c.convert(g)
		case len(g.slices) == 0 && g.old == nil && !g.foreign:
			delete(k.groups, g.objectKey)
		default:
			g.came = 0
		}
		k.find(g)
		if !slices.Equal(was, g.findings) {
			r.Findings = append(r.Findings, Findings{lb.Name{Namespace: g.namespace, Name: g.name}, g.findings})
		}
		same = same && len(g.services) == ports && !checked && g.healthChecks == nil
	}
	return same
}
