package daemon

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/kernelmodes/iptables"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
)

// lockedFor is how long kernel modes wait for the xtables lock that another program held at the start, and lockedTry
// the least time between two tries, each of which waits for it (netfilter.LockWait): its release is no event.
const (
	lockedFor = 10 * time.Minute
	lockedTry = time.Second
)

// engines gives a family what can forward its Services in the kernel by iptables. A host that cannot is
// reported when a Service requests it, and at once if it is the default. The error wraps netfilter.ErrLocked: this is
// to be tried again.
func (s *steering) engines(ctx context.Context, f *agent.Family, t *steeredFamily) error {
	facts, err := t.iptables.Probe(ctx)
	switch {
	case errors.Is(err, netfilter.ErrLocked):
		return err
	case err != nil:
		s.log.Debug("there is no iptables for kernel modes", zap.Error(err))
	}
	var lease *netfilter.Lease
	if facts.IPSet {
		lease = t.iptables.Lease
	}
	ipv6 := t.ipv6
	rules := &s.config.Document.IPTables
	e := &iptables.Engine{
		IPv6: ipv6, Lease: lease, Liberal: s.config.Kernel.Conntrack.BeLiberal,
		NoLocalhost: !*rules.LocalhostNodePorts,
		Masquerade:  s.masquerade(*rules.MasqueradeBit, rules.MasqueradeAll),
	}
	if facts, err := e.Probe(ctx); errors.Is(err, netfilter.ErrLocked) {
		return err
	} else if err != nil {
		f.No[agent.IPTables] = err
	} else {
		f.Engines[agent.IPTables] = e
		s.log.Debug("iptables can forward Services", zap.Bool("ipv6", ipv6),
			zap.Bool("random_ports", facts.RandomFully))
	}
	if err := s.ipvs(ctx, f, e); err != nil {
		return err
	}
	if s.mode == agent.IPTables && f.No[agent.IPTables] != nil {
		s.fallback("iptables", ipv6, f.No[agent.IPTables])
	}
	for _, warning := range facts.Warnings {
		s.log.Warn("iptables", zap.String("warning", warning))
	}
	return nil
}

// await offers the families with the engines that could not be tried at the start, since another program held the
// xtables lock.
func (s *steering) await(ctx context.Context, offer func(ipv6 bool, f agent.Family)) {
	ctx, cancel := context.WithTimeout(ctx, lockedFor)
	defer cancel()
	next := time.NewTicker(lockedTry)
	defer next.Stop()
	for _, t := range s.locked {
		f := *s.of(t.ipv6)
		f.No[agent.IPTables], f.No[agent.IPVS] = nil, nil
		err := s.engines(ctx, &f, t)
		for err != nil && ctx.Err() == nil {
			select {
			case <-next.C:
				err = s.engines(ctx, &f, t)
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				s.log.Warn("data paths iptables and ipvs stay unavailable until the next start")
			}
			return
		}
		offer(t.ipv6, f)
		s.log.Info("the xtables lock is free, data paths are tried", zap.Bool("ipv6", t.ipv6))
	}
}

// nftablesEngine gives a family the engine for nftables.
func (s *steering) nftablesEngine(ctx context.Context, f *agent.Family, t *steeredFamily) {
	rules := &s.config.Document.NFTables
	e := &nftables.Engine{
		IPv6: t.ipv6, Lifetime: s.config.Kernel.RulesLifetime,
		Masquerade: s.masquerade(*rules.MasqueradeBit, rules.MasqueradeAll),
	}
	if err := e.Probe(ctx); err == nil {
		f.Engines[agent.NFTables] = e
		t.engine.Store(e)
		s.leases = append(s.leases, e)
		return
	} else if f.No[agent.NFTables] = err; s.mode == agent.NFTables {
		s.fallback("nftables", t.ipv6, err)
	}
}

// masquerade returns what masquerading has in common in all modes.
func (s *steering) masquerade(bit int32, all bool) kernelmodes.Masquerade {
	local := &s.config.Document.DetectLocal
	return kernelmodes.Masquerade{
		MasqueradeMark: 1 << bit, MasqueradeAll: all, LocalBridge: local.BridgeInterface,
		LocalInterfaces: local.InterfaceNamePrefix, LocalCIDRs: s.config.Node.ClusterCIDRs,
	}
}

// ipvs gives a family the engine for ipvs, with what it has in common with that for
// iptables. A host that has ip_vs need not have it loaded before a Service requests it.
func (s *steering) ipvs(ctx context.Context, f *agent.Family, like *iptables.Engine) error {
	c := &s.config.Document.IPVS
	e := &ipvsEngine{log: s.log, Engine: ipvs.Engine{
		IPv6: like.IPv6, Lease: like.Lease, Masquerade: like.Masquerade,
		Scheduler: c.Scheduler, ExcludeCIDRs: s.config.Kernel.ExcludeCIDRs, StrictARP: c.StrictARP,
		TCPTimeout: c.TCPTimeout.Duration, TCPFinTimeout: c.TCPFinTimeout.Duration, UDPTimeout: c.UDPTimeout.Duration,
	}}
	f.No[agent.IPVS] = ipvs.Present(ctx)
	if f.No[agent.IPVS] == nil && s.mode == agent.IPVS {
		f.No[agent.IPVS] = e.Probe(ctx)
	}
	switch err := f.No[agent.IPVS]; {
	case err == nil:
		f.Engines[agent.IPVS] = e
	case errors.Is(err, netfilter.ErrLocked):
		return err
	case s.mode == agent.IPVS:
		s.fallback("ipvs", like.IPv6, err)
	}
	return nil
}

func (s *steering) fallback(mode string, ipv6 bool, err error) {
	s.log.Error("default data path unavailable, falling back to userspace", zap.String("mode", mode),
		zap.Bool("ipv6", ipv6), zap.Error(err))
}

// ipvsEngine logs which Services do not get the scheduler that they request.
type ipvsEngine struct {
	ipvs.Engine
	log    *zap.Logger
	logged map[lb.ID]string // schedulers that were requested
}

// Sync is that of the engine.
func (e *ipvsEngine) Sync(ctx context.Context, d lb.Delta, node lb.Node) error {
	if err := e.Engine.Sync(ctx, d, node); err != nil {
		return err
	}
	logged := make(map[lb.ID]string)
	for _, f := range e.Fallbacks() {
		logged[f.Service] = f.Requested
		if e.logged[f.Service] != f.Requested {
			e.log.Warn("IPVS scheduler not available, using fallback", zap.Stringer("service", f.Service),
				zap.String("requested", f.Requested), zap.String("used", f.Used), zap.String("reason", f.Reason))
		}
	}
	e.logged = logged
	return nil
}
