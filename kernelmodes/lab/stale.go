package lab

import (
	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/lb"
)

// Reconcile deletes the conntrack entries at the first address of a Service that are not at its backends, as the
// program does after each Sync.
func (l *Lab) Reconcile(kind flows.Kind, s lb.Service) {
	stale := flows.Stale{Log: zap.NewNop()}
	now := flows.Place{Kind: kind}
	for _, b := range s.Backends {
		now.Endpoints = append(now.Endpoints, b.Addr)
	}
	stale.Change(lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr}, flows.Place{}, now, true)
	l.Node.DoT(l.T, func() error {
		stale.Reconcile(&flows.Node{}, func(lb.Frontend) bool { return true })
		return nil
	})
}
