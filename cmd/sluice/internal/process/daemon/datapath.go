package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/accesslog"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// sharesOf returns what one Service and one client may have of what there is for all.
func sharesOf(c *config.DataPath) shares.Shares {
	return shares.Shares{Service: shares.Percent(c.MaxServiceShare), Client: shares.Percent(c.MaxClientShare)}
}

// dataPath is the servers that relay, and what they share.
type dataPath struct {
	loops  *eventloop.Group // nil where connections are served by goroutines
	budget eventloop.Budget
	lb     *balancer.Balancer
	tcp    *tcp.Server
	udp    *udp.Server
	sctp   *sctp.Server
	access *accesslog.Log
}

// openDataPath starts the loops and makes the servers, which listen nowhere yet. need is called when a client waits for
// endpoints. After an error nothing is left running.
func openDataPath(all *config.Config, need func(lb.ID), log *zap.Logger) (*dataPath, error) {
	c, to := &all.DataPath, &all.AccessLog
	loops, err := node.NewLoops(c.Loops)
	if err != nil {
		return nil, err
	}
	d := &dataPath{loops: loops, lb: &balancer.Balancer{Seed: uint64(time.Now().UnixNano()), Outlier: c.Outlier,
		Defaults: c.Policies, Loops: len(loops.Loops()), Timed: all.Metrics.Histograms, OnNeed: need}}
	if c.BusyPoll > 0 {
		if err := loops.BusyPoll(c.BusyPoll); err != nil {
			log.Warn("busy polling of network cards unavailable", zap.Error(err),
				zap.String("hint", "remove --busy-poll, or set net.core.busy_poll on Linux before 6.9"))
		}
	}
	of := sharesOf(c)
	if d.access, err = accesslog.Open(to.File, to.Format, c.Loops, os.Stdout, func(err error) {
		log.Error("the access log is not written as it should be", zap.Error(err))
	}); err != nil {
		err = fmt.Errorf("--access-log-file: %w: give a file that Sluice may write", err)
		return nil, errors.Join(err, loops.Close())
	}
	dials := tcp.Config{Loops: loops, LB: d.lb, Descriptors: &d.budget, Shares: of,
		OriginalDst: redirect.OriginalDst, Log: d.access.Add, LogSample: to.Sample}
	d.tcp = &tcp.Server{Config: dials}
	d.udp = &udp.Server{Loops: loops, LB: d.lb, Descriptors: &d.budget, IdleTimeout: c.UDPTimeout,
		DisableGSO: gsoDisabled(c, log), Shares: of, Log: d.access.Add, LogSample: to.Sample}
	if d.udp.MaxFlows, err = node.FlowLimit(); err != nil {
		log.Warn("UDP flows are bounded by the default", zap.Error(err))
	}
	d.sctp = &sctp.Server{Config: sctp.Config{Config: dials}, Engine: c.SCTPEngine,
		OnEngine: func(engine sctp.Engine, why string) {
			log.Info("forwarding SCTP", zap.Stringer("engine", engine), zap.String("reason", why))
		}}
	d.budget.Limit, err = node.FileLimit(c.Loops)
	// An engine that is asked for is tried now; else the first SCTP Service decides, since
	// asking the kernel for SCTP loads its module.
	if err == nil && c.SCTPEngine != sctp.Auto {
		if err = d.sctp.Choose(); err != nil {
			err = fmt.Errorf("--sctp-engine=%s: %w", c.SCTPEngine, err)
		}
	}
	if err != nil {
		_ = d.close()
		return nil, err
	}
	return d, nil
}

// room reports whether a Service with sockets for so many ports may have one more, of what all Services may have.
func (d *dataPath) room(share shares.Percent, have int) bool {
	_, free := d.budget.Listened()
	return share.Allows(int64(have), 1, free)
}

// gsoDisabled reports whether UDP datagrams are sent one by one, as requested or because this
// host might corrupt them.
func gsoDisabled(c *config.DataPath, log *zap.Logger) bool {
	if c.UDPGSO != udp.GSOAuto {
		return c.UDPGSO == udp.GSOOff
	}
	why, avoid := udp.AvoidGSO()
	if avoid {
		log.Warn("UDP GSO disabled: this host may corrupt GSO batches",
			zap.String("reason", why), zap.String("hint", "--udp-gso=on enables it"))
	}
	return avoid
}

// active returns how many connections, flows and associations there are.
func (d *dataPath) active() int64 {
	return d.tcp.Stats().Active + d.udp.Stats().Active + d.sctp.Stats().Active
}

// report logs what there is when the process starts to end.
func (d *dataPath) report(log *zap.Logger, timeout time.Duration) {
	log.Info("draining", zap.Int64("tcp_connections", d.tcp.Stats().Active),
		zap.Int64("udp_flows", d.udp.Stats().Active),
		zap.Int64("sctp_associations", d.sctp.Stats().Active), zap.Duration("timeout", timeout))
}

// drain stops accepting and waits for what is open, until ctx ends. It reports whether something was reset then.
func (d *dataPath) drain(ctx context.Context, log *zap.Logger) bool {
	var all sync.WaitGroup
	var reset atomic.Bool
	for _, shutdown := range []func(context.Context) error{d.tcp.Shutdown, d.udp.Shutdown, d.sctp.Shutdown} {
		all.Go(func() {
			if err := shutdown(ctx); err != nil {
				log.Warn("drain timeout", zap.Error(err))
				reset.Store(true)
			}
		})
	}
	all.Wait()
	return reset.Load()
}

// forgetReset makes the kernel forget what drain has reset, so that clients may take their ports again.
func (d *dataPath) forgetReset() error {
	frontends := make(map[lb.Protocol][]netip.AddrPort)
	for _, s := range d.lb.Table().Services() {
		for _, a := range s.Addresses {
			frontends[s.ID.Protocol] = append(frontends[s.ID.Protocol], a.Addr)
		}
	}
	var errs []error
	for _, p := range []lb.Protocol{lb.TCP, lb.SCTP} {
		for _, ipv6 := range []bool{false, true} {
			if err := flows.DeleteReset(p, ipv6, slices.Values(frontends[p])); !errors.Is(err, errors.ErrUnsupported) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// close closes the servers, which cuts what is open, and ends the loops.
func (d *dataPath) close() error {
	d.tcp.Close()
	d.udp.Close()
	d.sctp.Close()
	if d.loops == nil {
		return d.access.Close()
	}
	return errors.Join(d.loops.Close(), d.access.Close())
}
