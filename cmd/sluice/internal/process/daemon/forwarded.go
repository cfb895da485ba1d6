package daemon

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
	"github.com/sluice-lb/sluice/lb"
)

// newFlows makes what reports and counts what the kernel forwards.
func (d *daemon) newFlows() *report.Flows {
	uses := func(p agent.Path) bool { return p.InKernel() && d.agentStatus().Paths[p] > 0 }
	return report.New(report.Config{LB: d.data.lb, Watch: &d.watch, Now: eventloop.Now, PathOf: d.pathOf,
		InUse: func() bool { return slices.ContainsFunc(agent.Paths(), uses) }, Local: d.addresses.Get,
		ReadCounts: func(visit func(lb.Frontend, report.Count, map[netip.AddrPort]report.Count)) error {
			if !uses(agent.IPVS) {
				return nil
			}
			return readIPVS(visit)
		},
		Add: d.data.access.Add, Sample: d.Config.AccessLog.Sample, Log: d.Log,
		Accounting: d.Config.Kernel.Conntrack.Accounting})
}

// pathOf returns the kernel path that a service port is on, if it is on one.
func (d *daemon) pathOf(id lb.ID) (p report.Path) {
	c, ok := d.agent.Choice(id)
	if !ok || !c.Path.InKernel() {
		return p
	}
	return report.Path{Name: c.Path.String(), Counts: c.Path == agent.IPVS, Chosen: c.Path == agent.Queue}
}

// readIPVS passes the counts of both families to visit.
func readIPVS(visit func(of lb.Frontend, sum report.Count, each map[netip.AddrPort]report.Count)) error {
	count := func(c ipvs.Counts) report.Count {
		return report.Count{Total: c.Connections, In: flows.Count{Packets: c.PacketsIn, Bytes: c.BytesIn},
			Out: flows.Count{Packets: c.PacketsOut, Bytes: c.BytesOut}}
	}
	for _, ipv6 := range []bool{false, true} {
		err := ipvs.ReadCounts(ipv6, func(of lb.Frontend, sum ipvs.Counts, each map[netip.AddrPort]ipvs.Counts) {
			counts := make(map[netip.AddrPort]report.Count, len(each))
			for at, one := range each {
				counts[at] = count(one)
			}
			visit(of, count(sum), counts)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
