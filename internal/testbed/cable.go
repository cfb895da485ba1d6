package testbed

import (
	"fmt"
	"net/netip"
)

// newHosts builds hosts without links, in this order.
func newHosts(names ...string) (*Testbed, error) {
	tb := &Testbed{starter: newStarter()}
	for _, name := range names {
		if err := tb.addPlain(name); err != nil {
			tb.Close()
			if notAllowed(err) {
				return nil, fmt.Errorf("build hosts: %w: %w", ErrUnsupported, err)
			}
			return nil, fmt.Errorf("build hosts: %w", err)
		}
	}
	return tb, nil
}

// End is one end of a cable: an interface of a host, with its addresses.
type End struct {
	Host  *Host
	Name  string // of the interface
	Addrs []netip.Prefix
}

// Cable joins two hosts, or two interfaces of one, by a veth pair. When it returns both
// ends are up and their addresses are of use.
func Cable(a, b End) error { return cable(a, b) }

// Route adds a route out of an interface of the host, through a gateway or, if via is
// the zero Addr, to whatever answers on the link.
func (h *Host) Route(dev string, to netip.Prefix, via netip.Addr) error { return h.route(dev, to, via) }
