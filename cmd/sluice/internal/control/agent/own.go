package agent

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// OwnAddress is a Service with an address that is the node's own, so that it takes the
// connections to its ports from the programs of the node.
type OwnAddress struct {
	Service lb.ID // one of its ports
	Addr    netip.Addr
	Kind    lb.Kind
}

// ownAddress returns the first address of a Service that is the node's own or loopback.
// local is sorted.
func ownAddress(s *lb.Service, local []netip.Addr) (own OwnAddress, ok bool) {
	for i := range s.Addresses {
		a := &s.Addresses[i]
		ip := a.Addr.Addr()
		if a.Kind == lb.NodePort {
			continue
		}
		if _, held := slices.BinarySearchFunc(local, ip, netip.Addr.Compare); held || ip.IsLoopback() {
			return OwnAddress{s.ID, ip, a.Kind}, true
		}
	}
	return own, false
}

// reportOwn adds to the attempt which Services have an address of the node, once for each
// while it does, however many of its ports change with it.
func (a *Agent) reportOwn(plan *Plan, attempt *Attempt) {
	reported := make(map[lb.Name]bool)
	for i := range plan.changes {
		c := &plan.changes[i]
		var own OwnAddress
		if c.now != nothing {
			own, _ = ownAddress(c.now.service, a.local)
		}
		was, name := c.port.said.own, c.id().Service()
		c.port.said.own = own.Addr
		if own.Addr.IsValid() && own.Addr != was && !reported[name] {
			reported[name] = true
			attempt.Own = append(attempt.Own, own)
		}
	}
}
