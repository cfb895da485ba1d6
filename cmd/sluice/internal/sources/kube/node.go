package kube

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sluice-lb/sluice/lb"
)

// Facts is what there is to know of the node that we run on. With the zero
// Facts no endpoint is local and topology hints say nothing.
type Facts struct {
	// NodeName is the name of the Node object, by which endpoints and hints mean
	// the node.
	NodeName string
	// Hostname is what the node calls itself, which cloud providers let differ
	// from NodeName.
	Hostname string
	// Zone is the value of the label topology.kubernetes.io/zone.
	Zone string
	// Known says that there is a Node object, and Leaving that it is being deleted or
	// that the cluster autoscaler is about to do so: load balancers are to use
	// other nodes, while pods here are still served.
	Known, Leaving bool

	lb.Node
}

// taintToBeDeleted is how the cluster autoscaler marks a node that it drains. The API
// module has no constant for it.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// nodeFacts returns what a Node object says: of its addresses those of type
// InternalIP and then those of type ExternalIP, each once.
func nodeFacts(node *corev1.Node) Facts {
	facts := Facts{
		NodeName: node.Name,
		Hostname: node.Labels[corev1.LabelHostname],
		Zone:     node.Labels[corev1.LabelTopologyZone],
		Known:    true,
		Leaving: node.DeletionTimestamp != nil ||
			slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taintToBeDeleted }),
	}
	for _, want := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, address := range node.Status.Addresses {
			if address.Type != want {
				continue
			}
			ip, ok := parseAddr(address.Address)
			if ok && !slices.Contains(facts.Addresses, ip) {
				facts.Addresses = append(facts.Addresses, ip)
			}
		}
	}
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeHostName && address.Address != "" {
			facts.Hostname = address.Address
		}
	}
	podCIDRs := node.Spec.PodCIDRs
	if len(podCIDRs) == 0 {
		podCIDRs = []string{node.Spec.PodCIDR}
	}
	for _, text := range podCIDRs {
		if prefix, ok := parsePrefix(text); ok {
			facts.PodCIDRs = append(facts.PodCIDRs, prefix)
		}
	}
	return facts
}

// completedBy returns f with what it does not know taken from the Node of its
// name, and the addresses of the other Nodes.
func (f Facts) completedBy(nodes []*corev1.Node) Facts {
	for _, n := range nodes {
		if n.Name != f.NodeName {
			f.Elsewhere = append(f.Elsewhere, nodeFacts(n).Addresses...)
		}
	}
	i := slices.IndexFunc(nodes, func(n *corev1.Node) bool { return n.Name == f.NodeName })
	if i < 0 || f.NodeName == "" {
		return f
	}
	node := nodeFacts(nodes[i])
	f.Known, f.Leaving = node.Known, node.Leaving
	f.Hostname, f.Zone = cmp.Or(f.Hostname, node.Hostname), cmp.Or(f.Zone, node.Zone)
	if len(f.PodCIDRs) == 0 {
		f.PodCIDRs = node.PodCIDRs
	}
	if len(f.Addresses) == 0 {
		f.Addresses = node.Addresses
	}
	return f
}

// serviceCIDRs returns the prefixes of all ServiceCIDRs as lb.Node has them.
func serviceCIDRs(objects []*networkingv1.ServiceCIDR) (out []netip.Prefix) {
	for _, o := range objects {
		for _, text := range o.Spec.CIDRs {
			if prefix, ok := parsePrefix(text); ok {
				out = append(out, prefix)
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// equal reports whether both say the same of what Services are converted by.
func (f Facts) equal(other Facts) bool {
	return f.NodeName == other.NodeName && f.Hostname == other.Hostname && f.Zone == other.Zone &&
		slices.Equal(f.PodCIDRs, other.PodCIDRs) && slices.Equal(f.Addresses, other.Addresses)
}

// isLocal reports whether an endpoint with this nodeName, which may be nil, runs
// on our node.
func (f *Facts) isLocal(nodeName *string) bool {
	return nodeName != nil && *nodeName != "" && *nodeName == f.NodeName
}

// hintOf says what a list of the names of nodes or zones means to the one that
// has our name. If we do not know our name, no hint can be followed, which is
// the same as having none.
func hintOf[T any](hints []T, name func(T) string, ours string) lb.Hint {
	switch {
	case len(hints) == 0 || ours == "":
		return lb.NoHint
	case slices.ContainsFunc(hints, func(hint T) bool { return name(hint) == ours }):
		return lb.HintHere
	}
	return lb.HintElsewhere
}
