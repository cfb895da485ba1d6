package kubeproxy

import (
	"context"
	"net/netip"
)

// Removed counts what was removed.
type Removed struct {
	Chains  int // of iptables, in both backends and families
	Tables  int // of nftables
	Servers int // virtual servers of ipvs
	Sets    int // and its ipsets
}

// Any reports whether anything was removed.
func (r Removed) Any() bool { return r != Removed{} }

// Written reports whether nf_tables has rules of kube-proxy in the families that are true, by its mode nftables or by
// iptables. It costs little, as it runs no program; rules of the legacy backend of iptables only Cleanup finds.
func Written(families [2]bool) (bool, error) { return written(families) }

// Cleanup removes what kube-proxy has left in the families that are true, IPv4 and IPv6.
// Virtual servers in excluded stay (--ipvs-exclude-cidrs). It goes on after an error and
// returns all of them; what was removed by then is counted. Where there is nothing it only
// looks.
func Cleanup(ctx context.Context, families [2]bool, excluded []netip.Prefix) (Removed, error) {
	return cleanup(ctx, families, excluded)
}
