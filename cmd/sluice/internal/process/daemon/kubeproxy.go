package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/kernelmodes/kubeproxy"
)

// How often is looked for what kube-proxy leaves. An update that replaces it has both on the
// node for a while, and kube-proxy writes everything again when it misses its rules, every 30 s.
// To look is to list the chains of the node, so that the pauses double while nothing is found.
const (
	firstLookPause = 30 * time.Second
	lastLookPause  = 16 * time.Minute
)

// succeedKubeProxy removes what kube-proxy leaves, until ctx ends, if this process serves in
// its place: a cluster's Services, and those without a label. Its rules would go on forwarding
// Services that were deleted since.
func (d *daemon) succeedKubeProxy(ctx context.Context) {
	c := d.Config
	families := [2]bool{d.steering.ipv4.Steer != nil, d.steering.ipv6.Steer != nil}
	if !c.FromAPI() || c.Source.ServiceProxyName != "" || c.DataPath.Mode == config.ModeWinUserspace {
		return
	}
	pause := firstLookPause
	for found := false; ; {
		looking, cancel := context.WithTimeout(ctx, cleanupTimeout)
		removed, err := kubeproxy.Cleanup(looking, families, c.Kernel.ExcludeCIDRs)
		cancel()
		pause = min(2*pause, lastLookPause)
		if err != nil && ctx.Err() == nil {
			d.Log.Warn("what kube-proxy has left is not removed", zap.Error(err))
		}
		if removed.Any() {
			said := []zap.Field{zap.Int("chains", removed.Chains), zap.Int("nft_tables", removed.Tables),
				zap.Int("virtual_servers", removed.Servers), zap.Int("sets", removed.Sets)}
			if found {
				d.Log.Warn("kube-proxy's rules came back; removed them", append(said,
					zap.String("hint", "check whether kube-proxy still runs on this node"))...)
			} else {
				d.Log.Info("kube-proxy's rules are removed", said...)
			}
			found, pause = true, firstLookPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
