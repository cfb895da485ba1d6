package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/checks"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/outliers"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/events"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/history"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/metrics"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/status"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/handover"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/notify"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/upgrade"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/sysctl"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp"
)

const (
	// startTimeout bounds the first writing of rules, which may wait for the xtables lock
	// and be that of ten thousand Services.
	startTimeout = 3 * time.Minute

	// longStart is how long a start may take before others are to know what it waits for.
	longStart = time.Second

	// lockPatience is how long a process that is ending may still hold the instance lock,
	// and inheritPatience how long one may that has handed everything over.
	lockPatience    = time.Second
	inheritPatience = time.Minute
)

// Options is what a daemon is made of. Every field must be set, unless its comment says otherwise.
type Options struct {
	Config       config.Config
	Version      string
	Commit       string // that was built; empty: unknown
	Log          *zap.Logger
	LogDropped   func() uint64 // lines of Log
	SetVerbosity func(int)     // changes how much is logged, as the flag -v does
	Upgrade      *upgrade.Upgrader

	// Ask asks who has started the process, until done is closed. Nil: no one can answer.
	Ask func(done <-chan struct{}, question string) (yes bool)
}

// daemon is one running Sluice.
type daemon struct {
	Options
	source   source
	reading  turn // of source
	data     *dataPath
	steering *steering
	agent    *agent.Agent
	control  *control
	reports  *reports
	journal  *journal.Journal
	wrong    conditions.Set // what is rejected, ignored or leads nowhere
	objects  objects
	history  *history.Recorder
	lineage  lineage
	web      *web

	lock       node.Lock // held while rules may be written
	addresses  node.Addresses
	stopping   atomic.Bool
	watchdog   *watchdog
	outliers   *outliers.Watcher
	checks     *checks.Checker
	watch      flows.Watch
	kernel     *report.Flows
	changed    chan struct{} // by another program, of rules
	background sync.WaitGroup

	renewing sync.WaitGroup
	letGo    context.CancelFunc // ends that; nil before
}

func newDaemon(o Options) *daemon {
	d := &daemon{Options: o, journal: journal.New(o.Log), lineage: lineage{started: time.Now()},
		changed: make(chan struct{}, 1)}
	d.journal.Leaving = d.objects.leaving
	return d
}

// Run serves until ctx ends, or until another process has taken over, which is
// upgrade.ErrHandedOver: the caller must end the process at once. Another error is one of
// the start, after which nothing is left running, and no traffic is steered that was not
// before; or one of the end.
func Run(ctx context.Context, o Options) error {
	d := newDaemon(o)
	running, cancel := context.WithCancel(context.Background())
	defer cancel()
	if serving, err := d.start(running, ctx.Done()); !serving {
		cancel()
		d.background.Wait()
		return errors.Join(err, d.close())
	}
	d.background.Go(func() { d.agent.Run(running) })
	d.background.Go(func() { d.outliers.Run(running) })
	d.background.Go(func() { d.checks.Run(running) })
	d.background.Go(func() { d.kernel.Run(running) })
	d.background.Go(func() { d.reports.needPods(running) })
	d.background.Go(func() { d.steering.watch(running, d.suspect) })
	d.background.Go(func() { d.steering.await(running, d.agent.Offer) })
	if d.lock == 0 { // everything was taken over
		d.background.Go(func() { d.inheritLock(running) })
	}
	d.Log.Info("serving", zap.String("version", d.Version), zap.String("mode", d.Config.DataPath.Mode),
		zap.Int("service_ports", d.agent.Status().Services), zap.Int("loops", d.Config.DataPath.Loops),
		zap.Stringers("tcp_proxy_ports", d.data.tcp.Steered()), zap.Int64("file_descriptors", d.data.budget.Limit))
	d.background.Go(func() { d.succeedKubeProxy(running) })
	d.background.Go(func() { d.steering.warnMarks(running) })
	d.serveAPI()
	d.background.Go(func() { d.history.Run(running) })
	d.Upgrade.Serve(d.state(), func(err error) {
		d.lineage.failed.Add(1)
		d.journal.Remember(journal.Entry{Warning: true, Reason: journal.HandOverFailed, Note: err.Error()})
	})
	notify.Serving(d.Log, fmt.Sprintf("serving %d service ports in mode %s", d.agent.Status().Services,
		d.Config.DataPath.Mode))
	if d.watchdog.limit > 0 {
		d.background.Go(func() { d.watchdog.run(running) })
	}
	select {
	case <-ctx.Done():
		return d.stop(cancel)
	case <-d.Upgrade.Done():
		d.steering.queues.close() // the process that has taken over answers
		d.kernel.Close()
		d.journal.Close()                                            // says what it has not yet
		return errors.Join(d.Upgrade.Close(), d.data.access.Close()) // of what has ended here
	}
}

// start brings everything up, what can fail for a reason of the configuration first, and
// waits for the first Services, be it for long. It returns false if there was an error, or
// stop was closed meanwhile.
func (d *daemon) start(ctx context.Context, stop <-chan struct{}) (serving bool, err error) {
	started := node.CollectStart()
	defer func() {
		d.background.Go(func() {
			started()
			debug.FreeOSMemory() // what the start took beyond
		})
	}()
	if err := d.openSource(); err != nil {
		return false, err
	}
	process := &d.Config.Process
	if err := d.Upgrade.Prepare(process.HandoverSocket, process.PIDFile, d.Log); err != nil {
		return false, err
	}
	if err := d.open(ctx); err != nil {
		return false, err
	}
	first := make(chan agent.Desired, 1)
	d.background.Go(func() {
		submit := func(desired agent.Desired) { first <- desired }
		d.source.Run(ctx, func(o kube.Objects) {
			defer d.reading.begin()()
			submit(d.control.desired(o))
			submit = d.agent.Submit
		})
	})
	desired, ok := d.await(first, stop)
	if !ok {
		return false, nil
	}
	if err := d.confirm(ctx, stop, &desired); err != nil {
		return false, err
	}
	within, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := d.serve(within, desired); err != nil {
		return false, err
	}
	return true, nil
}

// openSource makes the source of Services, and what reports its mistakes.
func (d *daemon) openSource() (err error) {
	d.reports, err = newReports(&d.Config, &d.wrong, d.Log, d.journal, d.objects.uidOf, &d.stopping)
	if err != nil {
		return err
	}
	d.source, err = newSource(&d.Config, d.reports.put, d.Log, d.journal, &d.reading)
	return err
}

// await waits for the first Services. If they take long it answers meanwhile what it waits for, unless there is a
// process to take over from, which answers. False: stop was closed.
func (d *daemon) await(first <-chan agent.Desired, stop <-chan struct{}) (desired agent.Desired, ok bool) {
	long := time.NewTimer(longStart)
	defer long.Stop()
	for {
		select {
		case <-stop:
			return desired, false
		case desired = <-first:
			return desired, true
		case <-long.C:
			if !d.Upgrade.Found() {
				d.listenAPI(false)
			}
		}
	}
}

// open makes all that is needed to serve, each part of those before it. The agent, which applies what is desired by
// all of them, comes last; what others ask of it they ask later.
func (d *daemon) open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := &d.Config
	if d.data, err = openDataPath(c, d.reports.need, d.Log); err != nil {
		return err
	}
	d.web = d.newWeb()
	d.control = &control{config: c, log: d.Log, lb: d.data.lb, objects: &d.objects, put: d.reports.put,
		local:  func() ([]netip.Addr, error) { return d.agent.NodeAddrs() },
		checks: status.ServiceChecks{Healthy: d.healthy, Open: d.web.open, Failed: d.reports.check}}
	d.checks = checks.New(d.data.lb, d.data.budget.Limit)
	d.kernel = d.newFlows()
	d.steering = newSteering(c, d.newQueues(), d.Log)
	if err := d.steering.open(ctx, d.Upgrade.Found()); err != nil {
		return err
	}
	d.watchdog = d.newWatchdog()
	m := d.newMetrics()
	d.agent = d.newAgent(m)
	d.outliers = outliers.New(d.data.lb, d.agent.Ejected, d.reports.ejection)
	d.history = history.New(d.data.lb, func() uint64 { return d.agent.Status().Applied }, d.reports.refusals)
	if err := d.serveWeb(m); err != nil {
		return err
	}
	d.reports.recorder.Record(events.Starting())
	d.prepareHost()
	return nil
}

// agentStatus is for what is made before the agent: until then nothing is applied.
func (d *daemon) agentStatus() (s agent.Status) {
	if d.agent == nil {
		return s
	}
	return d.agent.Status()
}

// newAgent makes the agent of all that it works with.
func (d *daemon) newAgent(m *metrics.Metrics) *agent.Agent {
	c, data := &d.Config, d.data
	return agent.New(agent.Config{LB: data.lb, Servers: map[lb.Protocol]agent.Sockets{
		lb.TCP: agent.TCP(data.tcp), lb.UDP: data.udp, lb.SCTP: data.sctp}, Proxy: data.tcp,
		Moving: &agent.Moving{Move: data.udp.Move, Flows: data.udp.Flows, Leave: data.udp.Leave,
			Settle: data.udp.Settle},
		Stale:    d.steering.reconciler(m.ObserveStale),
		Families: [2]agent.Family{d.steering.ipv4, d.steering.ipv6},
		Ports:    c.DataPath.ProxyPortRange, Now: eventloop.Now, LocalAddrs: d.addresses.Get,
		NodePorts: d.control.nodePorts, Transparency: newTransparency(data.tcp, c.Kernel.MarkMask),
		Room:       func(have int) bool { return data.room(sharesOf(&c.DataPath).Service, have) },
		RefuseSCTP: func() bool { engine, _ := data.sctp.InUse(); return engine == sctp.Packet },
		Mode:       d.steering.mode, Stabilization: c.DataPath.Stabilization,
		VerifyEvery: c.Kernel.SyncPeriod, WriteEvery: c.Kernel.MinSyncPeriod,
		Forwarding: d.kernel.Expect,
		Observe: d.reports.observe(func(a agent.Attempt) {
			m.ObserveAttempt(a)
			d.watchdog.attempted.Store(time.Now().UnixNano())
			d.kernel.Changed()
			d.checks.Changed()
		}), Log: d.Log})
}

// prepareHost changes what helps to serve. A host that forbids it is served as it is.
func (d *daemon) prepareHost() {
	if err := d.addresses.Watch(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		d.Log.Info("the node's addresses are read at each change", zap.Error(err))
	}
	if err := sysctl.ReuseTimeWait(); err != nil {
		d.Log.Warn("cannot reuse ports in TIME_WAIT: short connections may use all ports", zap.Error(err))
	}
	if d.Config.DataPath.Mode == config.ModeWinUserspace {
		d.Log.Debug("conntrack is left as it is: nothing is steered")
	} else if err := node.TuneConntrack(d.Config.Kernel.Conntrack, d.Log); err != nil {
		d.Log.Warn("conntrack settings not applied", zap.Error(err))
	}
}

// serve starts to serve: with what a running process has, or afresh.
func (d *daemon) serve(ctx context.Context, desired agent.Desired) error {
	if d.Upgrade.Found() {
		d.lineage.ask(ctx, d.Config.Process.APISocket)
	}
	taken, err := d.Upgrade.Take(ctx, d.state())
	if err != nil {
		return err
	}
	if taken {
		d.lineage.taken = true
		d.holdRules()
		d.agent.TakeOver(desired) // what was taken over is served until that is applied
		return nil
	}
	d.lineage = lineage{started: d.lineage.started} // who was asked has ended
	if d.lock, err = node.LockWithin(ctx, lockPatience); err != nil {
		if held := (*node.HeldError)(nil); errors.As(err, &held) {
			err = fmt.Errorf("%w, or give both the same --handover-socket, in a folder that both see (for pods, a "+
				"hostPath), to take over from it", err)
		}
		return err
	}
	// Rules of a process that has crashed steer clients to the ports as soon as they are open.
	switch err := d.agent.Prime(desired, d.steering.before); {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("--bind-address %s: %w: give an address of this node, or 0.0.0.0 for all",
			d.Config.DataPath.BindAddress, err)
	case err != nil:
		return err
	}
	if err := d.insist(ctx, func() error { return d.steering.probeRest(ctx, d.agent.Offer) }); err != nil {
		return err
	}
	d.holdRules()
	if err := d.insist(ctx, func() error { return d.agent.Apply(ctx, desired) }); err != nil {
		return fmt.Errorf("apply the first Services: %w", err)
	}
	return nil
}

// insist tries to write rules again while another program holds the xtables lock, if clients are steered by those of an
// earlier process: they are served already, and would be refused if this process ended.
func (d *daemon) insist(ctx context.Context, write func() error) error {
	for {
		err := write()
		if !errors.Is(err, netfilter.ErrLocked) || d.steering.before.TCPPort == 0 || ctx.Err() != nil {
			return err
		}
		d.Log.Warn("rules of an earlier process are served until others can be written", zap.Error(err))
	}
}

// holdRules keeps rules in force until close, and for their lifetime after it.
func (d *daemon) holdRules() {
	var ctx context.Context
	ctx, d.letGo = context.WithCancel(context.Background())
	d.renewing.Go(func() { d.steering.renew(ctx) })
}

// state is what is handed over, or taken.
func (d *daemon) state() *handover.State {
	s := &handover.State{Program: d.Version, Loops: d.data.loops, LB: d.data.lb,
		TCP: d.data.tcp, UDP: d.data.udp, SCTP: d.data.sctp, Agent: d.agent, Journal: d.journal, Kernel: d.kernel}
	if m, ok := d.source.(*manifests); ok {
		s.Manifests, s.Loses = m.loader.Applied, m.loses
	}
	return s
}

// inheritLock takes the instance lock of the process that everything was taken over from,
// which ends at once.
func (d *daemon) inheritLock(ctx context.Context) {
	var err error
	if d.lock, err = node.LockWithin(ctx, inheritPatience); err != nil && ctx.Err() == nil {
		d.Log.Warn("a --cleanup would not notice that this process serves", zap.Error(err))
	}
}

// close ends whatever start has started.
func (d *daemon) close() error {
	if d.Config.Process.OnExit != config.CleanUp { // else the rules are still to be removed
		d.lock.Release()
	}
	if d.letGo != nil {
		d.letGo()
		d.renewing.Wait()
	}
	if d.steering != nil {
		d.steering.queues.close()
	}
	if d.kernel != nil {
		d.kernel.Close()
	}
	var errs []error
	if d.data != nil {
		errs = append(errs, d.data.close())
	}
	if d.web != nil {
		errs = append(errs, d.web.close())
	}
	if d.control != nil {
		errs = append(errs, d.control.checks.Close())
	}
	errs = append(errs, d.addresses.Close())
	if d.reports != nil {
		d.reports.recorder.Close()
	}
	d.journal.Close()
	return errors.Join(errs...)
}
