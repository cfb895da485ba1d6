package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/events"
	"github.com/sluice-lb/sluice/kernelmodes/kubeproxy"
)

// How often is looked for what kube-proxy leaves, beside the changes of nf_tables that tell it. kube-proxy writes
// everything again when it misses its rules, every 30 s. A look may run programs, so that the pauses double while
// nothing is found.
const (
	firstLookPause = 30 * time.Second
	lastLookPause  = 16 * time.Minute

	// wakeShare: looks because of changes by other programs take at most one part of so many of the time.
	wakeShare = 20
)

// suspect notes that another program has changed rules. It does not block.
func (d *daemon) suspect() {
	d.agent.Suspect()
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// succeedKubeProxy removes what kube-proxy leaves, until ctx ends, if this process serves in
// its place: a cluster's Services, and those without a label. Its rules would go on forwarding
// Services that were deleted since. Rules that come later are of a kube-proxy that runs.
func (d *daemon) succeedKubeProxy(ctx context.Context) {
	c := d.Config
	if !c.FromAPI() || c.Source.ServiceProxyName != "" || c.DataPath.Mode == config.ModeWinUserspace {
		return
	}
	r := rival{families: [2]bool{d.steering.ipv4.Steer != nil, d.steering.ipv6.Steer != nil},
		least: c.Kernel.MinSyncPeriod, changed: d.changed, first: true, pause: firstLookPause}
	for {
		looking, cancel := context.WithTimeout(ctx, cleanupTimeout)
		removed, err := kubeproxy.Cleanup(looking, r.families, c.Kernel.ExcludeCIDRs)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.Log.Warn("what kube-proxy has left is not removed", zap.Error(err))
		}
		if removed.Any() && !r.runs {
			d.Log.Info("kube-proxy's rules are removed", zap.Int("chains", removed.Chains),
				zap.Int("nft_tables", removed.Tables), zap.Int("virtual_servers", removed.Servers),
				zap.Int("sets", removed.Sets))
		}
		switch begun, over := r.looked(removed.Any(), err); {
		case begun:
			d.reports.begins("kube-proxy", events.KubeProxyRuns())
		case over:
			d.reports.ends("kube-proxy", events.KubeProxyGone())
		}
		if !r.wait(ctx) {
			return
		}
	}
}

// rival is what is known of a kube-proxy on this node.
type rival struct {
	families [2]bool
	least    time.Duration // from a change by another program to a look
	changed  <-chan struct{}
	first    bool // no look has succeeded yet: what is found is of before this process
	runs     bool
	pause    time.Duration // to the next look
}

// looked takes what a look has found, and reports whether kube-proxy has begun, or is over: a look found nothing that
// came more than firstLookPause after the one before.
func (r *rival) looked(found bool, err error) (begun, over bool) {
	begun = found && !r.first && !r.runs
	over = !found && err == nil && r.runs && r.pause > firstLookPause
	r.runs = begun || r.runs && !over
	r.first = r.first && err != nil
	if r.pause = min(2*r.pause, lastLookPause); found {
		r.pause = firstLookPause
	}
	return begun, over
}

// wait waits until the next look is due: after the pause, or soon after kube-proxy has written rules if it did not run.
// While it runs the two would else write as often as they can. False: ctx has ended.
func (r *rival) wait(ctx context.Context) bool {
	due, changed := time.After(r.pause), r.changed
	if r.runs {
		changed = nil
	}
	var soon <-chan time.Time
	for least := r.least; ; {
		select {
		case <-ctx.Done():
			return false
		case <-due:
			return true
		case <-changed:
			if soon == nil {
				soon = time.After(least)
			}
		case <-soon:
			start := time.Now()
			if there, err := kubeproxy.Written(r.families); there && err == nil {
				return true
			}
			soon, least = nil, max(r.least, wakeShare*time.Since(start))
		}
	}
}
