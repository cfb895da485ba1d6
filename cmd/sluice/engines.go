package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/kernelmodes/iptables"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
	"github.com/sluice-lb/sluice/lb"
)

// engines gives a family what can forward its Services in the kernel. A host that
// cannot is told when a Service wishes it, and at once if all do.
func (p *program) engines(ctx context.Context, f *agent.Family, ipv6 bool) {
	local := p.cfg.Node.DetectLocal
	e := &iptables.Engine{
		IPv6: ipv6, Liberal: p.cfg.Kernel.Conntrack.BeLiberal,
		MasqueradeMark: 1 << p.cfg.Kernel.IPTables.MasqueradeBit, MasqueradeAll: p.cfg.Kernel.IPTables.MasqueradeAll,
		NoLocalhost: !p.cfg.Kernel.IPTables.LocalhostNodePorts,
		LocalBridge: local.Bridge, LocalInterfaces: local.InterfacePrefix,
	}
	if local.Mode == config.DetectClusterCIDR {
		e.LocalCIDRs = local.ClusterCIDRs
	}
	if facts, err := e.Probe(ctx); err != nil {
		f.NoIPTables = err
	} else {
		f.IPTables = e
		p.log.Debug("iptables can forward Services", zap.Bool("ipv6", ipv6), zap.Bool("random ports", facts.RandomFully))
	}
	p.ipvs(ctx, f, e)
	if p.mode() == agent.IPTables && f.NoIPTables != nil {
		p.log.Error("--proxy-mode iptables cannot be had, Services are forwarded in user space", zap.Bool("ipv6", ipv6), zap.Error(f.NoIPTables))
	}
}

// ipvs gives a family the engine for ipvs, with what it has in common with that for
// iptables. A host that has ip_vs need not have it loaded before a Service wishes it.
func (p *program) ipvs(ctx context.Context, f *agent.Family, like *iptables.Engine) {
	c := p.cfg.Kernel.IPVS
	e := &ipvsEngine{log: p.log, Engine: ipvs.Engine{
		IPv6: like.IPv6, MasqueradeMark: like.MasqueradeMark, MasqueradeAll: like.MasqueradeAll,
		LocalCIDRs: like.LocalCIDRs, LocalBridge: like.LocalBridge, LocalInterfaces: like.LocalInterfaces,
		Scheduler: c.Scheduler, ExcludeCIDRs: c.ExcludeCIDRs, StrictARP: c.StrictARP,
		TCPTimeout: c.TCPTimeout, TCPFinTimeout: c.TCPFinTimeout, UDPTimeout: c.UDPTimeout,
	}}
	f.NoIPVS = ipvs.Present(ctx)
	if f.NoIPVS == nil && p.mode() == agent.IPVS {
		_, f.NoIPVS = e.Probe(ctx)
	}
	if f.NoIPVS == nil {
		f.IPVS = e
	} else if p.mode() == agent.IPVS {
		p.log.Error("--proxy-mode ipvs cannot be had, Services are forwarded in user space", zap.Bool("ipv6", like.IPv6), zap.Error(f.NoIPVS))
	}
}

// ipvsEngine logs which Services do not get the scheduler that they request.
type ipvsEngine struct {
	ipvs.Engine
	log    *zap.Logger
	logged map[lb.ID]string // schedulers
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

// mode is the path of Services that wish none.
func (p *program) mode() agent.Path {
	path, _ := agent.ParsePath(p.cfg.DataPath.Mode)
	return path
}
