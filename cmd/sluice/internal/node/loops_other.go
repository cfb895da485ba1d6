//go:build !linux

package node

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// SpareProcessor has nothing to do without event loops.
func SpareProcessor(int) {}

// NewLoops returns nil: connections and flows are served by goroutines here.
func NewLoops(int) (*eventloop.Group, error) { return nil, nil }

// Listenable returns addresses as node ports listen on them: in place of all addresses
// each one, since an answer has to come from the one that was asked.
func Listenable(addrs, local []netip.Addr) (out []netip.Addr) {
	for _, a := range addrs {
		if !a.IsUnspecified() {
			out = append(out, a)
			continue
		}
		for _, ip := range local {
			if ip.Is6() == a.Is6() {
				out = append(out, ip)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
