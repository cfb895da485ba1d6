package kernelmodes

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/sluice-lb/sluice/lb"
)

// Masquerade is the part of an engine's configuration that is the same for all of them. Its
// zero value is usable.
type Masquerade struct {
	// MasqueradeMark is the bit of packet marks for connections whose source is to
	// become this node (--iptables-masquerade-bit). 0 means 0x4000, bit 14.
	MasqueradeMark uint32

	// MasqueradeAll masquerades every connection to a cluster IP
	// (--masquerade-all).
	MasqueradeAll bool

	// LocalCIDRs, LocalBridge and LocalInterfaces define which traffic is that of pods,
	// which is not masqueraded on its way to a cluster IP: by its source, by the bridge
	// it comes from, or by how the name of its interface begins (--detect-local-mode). If
	// all are empty it is that from lb.Node.PodCIDRs; if those are empty as well, none is
	// known, and no traffic to cluster IPs is masqueraded, but for the node's own with ipvs.
	LocalCIDRs      []netip.Prefix
	LocalBridge     string
	LocalInterfaces string
}

// Mark returns the bit of packet marks.
func (m *Masquerade) Mark() uint32 { return cmp.Or(m.MasqueradeMark, 1<<14) }

// Interfaces returns matches for the interfaces that pods are known by; none if they are not.
func (m *Masquerade) Interfaces() (out []string) {
	if m.LocalBridge != "" {
		out = append(out, "-i "+m.LocalBridge) // what a pod sends comes from a port of the bridge
	}
	if m.LocalInterfaces != "" {
		out = append(out, "-i "+strings.TrimSuffix(m.LocalInterfaces, "+")+"+")
	}
	return out
}

// Pods returns matches for the traffic of pods of a family; none if it is not known.
func (m *Masquerade) Pods(ipv6 bool, node lb.Node) []string {
	out := m.Interfaces()
	for _, p := range m.PodCIDRs(ipv6, node) {
		out = append(out, "-s "+p.String())
	}
	return out
}

// PodCIDRs returns the ranges of a family that pods are known by; none if they are not.
func (m *Masquerade) PodCIDRs(ipv6 bool, node lb.Node) []netip.Prefix {
	cidrs := m.LocalCIDRs
	if len(cidrs) == 0 && m.LocalBridge == "" && m.LocalInterfaces == "" {
		cidrs = node.PodCIDRs
	}
	return OfFamily(cidrs, ipv6)
}

// MasqueradeTarget is the target that makes this node the source.
func MasqueradeTarget(randomFully bool) string {
	if randomFully {
		return "MASQUERADE --random-fully"
	}
	return "MASQUERADE"
}

// OfFamily returns the prefixes of a family.
func OfFamily(list []netip.Prefix, ipv6 bool) (out []netip.Prefix) {
	for _, p := range list {
		if p.IsValid() && p.Addr().Is6() == ipv6 {
			out = append(out, p.Masked())
		}
	}
	return out
}
