//go:build !linux

package main

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// spareProcessor has nothing to do without event loops.
func spareProcessor(int) {}

// newLoops returns nil: connections and flows are served by goroutines here.
func newLoops(int) (*eventloop.Group, error) { return nil, nil }

// listenable returns addresses as node ports listen on them: in place of all addresses
// each one, since an answer has to come from the one that was asked.
func listenable(addrs, local []netip.Addr) (out []netip.Addr) {
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
