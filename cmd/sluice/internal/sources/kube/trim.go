package kube

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
)

// TrimService returns a Service that says of svc what Convert reads, and by which
// events name it. It shares memory with svc, which must not be changed any more.
// Most of what an API server holds of a large cluster is none of that.
func TrimService(svc *corev1.Service) *corev1.Service {
	spec := &svc.Spec
	out := &corev1.Service{
		ObjectMeta: trimMeta(&svc.ObjectMeta, labelServiceProxyName, policies.Prefix),
		Spec: corev1.ServiceSpec{
			Type:                     spec.Type,
			ClusterIP:                spec.ClusterIP,
			ClusterIPs:               spec.ClusterIPs,
			ExternalIPs:              spec.ExternalIPs,
			LoadBalancerSourceRanges: spec.LoadBalancerSourceRanges,
			SessionAffinity:          spec.SessionAffinity,
			SessionAffinityConfig:    spec.SessionAffinityConfig,
			InternalTrafficPolicy:    spec.InternalTrafficPolicy,
			ExternalTrafficPolicy:    spec.ExternalTrafficPolicy,
			HealthCheckNodePort:      spec.HealthCheckNodePort,
		},
	}
	out.CreationTimestamp, out.DeletionTimestamp = svc.CreationTimestamp, svc.DeletionTimestamp
	if spec.ClusterIP == "" { // of a file
		out.Spec.IPFamilies = spec.IPFamilies
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		out.Spec.Ports = append(out.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port,
			NodePort: p.NodePort})
	}
	for i := range svc.Status.LoadBalancer.Ingress {
		in := &svc.Status.LoadBalancer.Ingress[i]
		out.Status.LoadBalancer.Ingress = append(out.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: in.IP, IPMode: in.IPMode})
	}
	return out
}

// TrimSlice is TrimService for an EndpointSlice. When its endpoints last changed,
// as the control plane notes it, is kept too. The endpoints share memory: ten thousand
// slices of ten are half a million objects otherwise, each of which the garbage collector
// looks at each time.
func TrimSlice(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: trimMeta(&slice.ObjectMeta, discoveryv1.LabelServiceName, corev1.IsHeadlessService,
			corev1.EndpointsLastChangeTriggerTime, policies.Prefix),
		AddressType: slice.AddressType,
		Ports:       slice.Ports,
		Endpoints:   make([]discoveryv1.Endpoint, len(slice.Endpoints)),
	}
	all := make([]string, 0, len(slice.Endpoints)) // most have one address
	for i := range slice.Endpoints {
		all = append(all, slice.Endpoints[i].Addresses...)
	}
	text := strings.Join(all, "")
	for i := range all {
		all[i], text = text[:len(all[i])], text[len(all[i]):]
	}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		n := len(e.Addresses)
		out.Endpoints[i] = discoveryv1.Endpoint{Addresses: all[:n:n], NodeName: e.NodeName, Hints: e.Hints,
			Conditions: discoveryv1.EndpointConditions{Ready: shared(e.Conditions.Ready),
				Serving: shared(e.Conditions.Serving), Terminating: shared(e.Conditions.Terminating)}}
		all = all[n:]
	}
	return out
}

var yes, no = true, false

// shared returns what means the same as b, nil included.
func shared(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return &yes
	}
	return &no
}

// TrimNode is TrimService for a Node. What says that the node is being removed is
// kept too.
func TrimNode(node *corev1.Node) *corev1.Node {
	out := &corev1.Node{
		ObjectMeta: trimMeta(&node.ObjectMeta, corev1.LabelHostname, corev1.LabelTopologyZone),
		Spec:       corev1.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs, Taints: node.Spec.Taints},
	}
	out.DeletionTimestamp = node.DeletionTimestamp
	out.Status.Addresses = node.Status.Addresses
	return out
}

// TrimServiceCIDR is TrimService for a ServiceCIDR.
func TrimServiceCIDR(cidr *networkingv1.ServiceCIDR) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: trimMeta(&cidr.ObjectMeta), Spec: cidr.Spec}
}

// trimMeta keeps what names an object, and the wanted labels and annotations, of which
// policies.Prefix stands for several.
func trimMeta(meta *metav1.ObjectMeta, wanted ...string) metav1.ObjectMeta {
	keep := func(all map[string]string) (out map[string]string) {
		for key, value := range all {
			isWanted := func(w string) bool {
				return key == w || w == policies.Prefix && (strings.HasPrefix(key, w) || policies.Misspelt(key) != "")
			}
			if slices.ContainsFunc(wanted, isWanted) {
				if out == nil {
					out = make(map[string]string, 1)
				}
				out[key] = value
			}
		}
		return out
	}
	return metav1.ObjectMeta{
		Namespace:   meta.Namespace,
		Name:        meta.Name,
		UID:         meta.UID,
		Labels:      keep(meta.Labels),
		Annotations: keep(meta.Annotations),
	}
}
