package agent

import (
	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
)

// Transparency makes the answers of endpoints on this node to clients' own addresses come back here. It is used by one
// goroutine.
type Transparency interface {
	Sync(ipv6, on bool) error // off may be done later
	Verify() bool
}

// requestTransparency notes which service ports in user space request that endpoints see the client's own address.
func (a *Agent) requestTransparency(plan *Plan) {
	for i := range plan.changes {
		c := &plan.changes[i]
		s := c.now.service
		if s != nil && s.Protocol == lb.TCP && c.now.choice.Path == Userspace &&
			s.InForce(&a.LB.Defaults).Transparent == lb.On {
			a.transparent[c.id()] = true
		} else {
			delete(a.transparent, c.id())
		}
	}
	a.syncTransparency(true)
}

// syncTransparency has the rules be there as long as a service port of a family requests them. Without them endpoints
// see this node's address, which is no reason to serve nothing else. off: those that are not requested may go.
func (a *Agent) syncTransparency(off bool) {
	if a.Transparency == nil {
		return
	}
	var on [2]bool
	for id := range a.transparent {
		on[family(id.IPv6)] = true
	}
	for i, on := range on {
		if !on && !off {
			continue
		}
		err := a.Transparency.Sync(i == 1, on)
		if said := on && err != nil; said != a.opaque[i] {
			if a.opaque[i] = said; said {
				a.Log.Warn("transparent unavailable: endpoints see this node's address",
					zap.Bool("ipv6", i == 1), zap.Error(err))
			}
		}
	}
}
