package manifest

import (
	"slices"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
)

// node checks a Node, of which only the addresses are of interest. Those that are
// no IPs by their type, such as Hostname, may be anything, as in the API.
func (d *decoder) node(o *object, n *yaml.Node, node *corev1.Node) {
	c := checker{d, n}
	c.metadata(nodeType.Kind, &node.ObjectMeta)
	o.claim(claim{kind: nodeType.Kind, name: node.Name}, o.line)
	c.podCIDRs(&node.Spec)
	for i, address := range node.Status.Addresses {
		switch address.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
			c.ip(at("status", "addresses", i, "address"), address.Address)
		}
	}
}

// podCIDRs checks spec.podCIDR and spec.podCIDRs and fills in the one from the
// other. An API server takes podCIDR if the two disagree, for clients that know
// of nothing else; a file has no such excuse.
func (c checker) podCIDRs(spec *corev1.NodeSpec) {
	path, ok := c.pair("podCIDR", &spec.PodCIDR, "podCIDRs", &spec.PodCIDRs)
	if !ok {
		return
	}
	if len(spec.PodCIDRs) > 2 {
		c.bad(at("spec", "podCIDRs"), "has %d ranges; write at most one of each family", len(spec.PodCIDRs))
		return
	}
	var families []corev1.IPFamily
	for i, text := range spec.PodCIDRs {
		prefix, why := parsePrefix(text)
		if why != "" {
			c.bad(path(i), "%s", why)
			continue
		}
		family := familyOf(prefix.Addr())
		if slices.Contains(families, family) {
			c.bad(path(i), "is %s, the second %s range; write at most one of each family", text, family)
		}
		families = append(families, family)
	}
}
