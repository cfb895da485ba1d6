package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/events"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/metrics"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/status"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// startTimeout bounds the first writing of rules, which may wait for the xtables lock
// and be that of ten thousand Services.
const startTimeout = 3 * time.Minute

// program is the rooms of one running Sluice.
type program struct {
	cfg   config.Config
	log   *zap.Logger
	level zap.AtomicLevel // of log

	source   source
	loops    *eventloop.Group
	budget   eventloop.Budget
	tcp      *tcp.Server
	udp      *udp.Server
	sctp     *sctp.Server
	agent    *agent.Agent
	convert  kube.Converter
	checks   status.ServiceChecks // this and convert are of the goroutine that calls desired
	http     []*status.Server
	primary  atomic.Pointer[[]netip.Addr] // by which others know the node, from its Node object
	eligible atomic.Bool                  // load balancers may send connections to this node
	events   events.Recorder
	served   []metrics.Family                  // the address families
	steerers []*redirect.IPTables              // of those that are steered
	services atomic.Pointer[[]*corev1.Service] // of the last conversion
	stopping atomic.Bool
	next     *succession
	before   redirect.Leftover    // where rules that were there at the start lead
	unprobed []*redirect.IPTables // families whose rules were there at the start, until there is time to probe
	claim    claim                // held while rules may be written
	local    nodeAddresses
	early    early

	background sync.WaitGroup
}

// serve runs until stop is closed. An error is one of the start: by then nothing
// is left running, and no traffic has been steered that was not before.
func serve(cfg config.Config, log *zap.Logger, level zap.AtomicLevel, stop <-chan struct{}, next *succession) error {
	p := &program{cfg: cfg, log: log, level: level, next: next}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if serving, err := p.start(ctx, stop); !serving {
		cancel()
		p.background.Wait()
		return errors.Join(err, p.close())
	}
	p.background.Go(func() { p.agent.Run(ctx) })
	if p.claim == 0 { // everything was taken over
		p.background.Go(func() { p.inheritClaim(ctx) })
	}
	log.Info("serving", zap.String("version", version), zap.String("mode", cfg.DataPath.Mode),
		zap.Int("service ports", p.agent.Status().Services), zap.Int("loops", cfg.DataPath.Loops),
		zap.Uint16("tcp proxy port", p.agent.TCPPort), zap.Int64("descriptors for connections", p.budget.Limit))

	p.next.serve(ctx, &p.background)
	<-stop
	p.next.close()
	p.stopping.Store(true) // probes fail from now on, so that others send no more
	cancel()
	p.background.Wait()
	if !cfg.Process.CleanupOnExit {
		p.claim.release() // the next may start while this one drains
	}
	p.drain()
	if err := p.close(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if cfg.Process.CleanupOnExit {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := removeTraces(ctx); err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
		log.Info("stopped; every rule and address is removed")
		return nil
	}
	log.Info("stopped; rules and addresses stay for the next start, sluice --cleanup removes them")
	return nil
}

// start brings everything up, what can fail for a reason of the configuration first,
// and waits for the first Services, be it for long. It returns false if there was an
// error, or stop was closed meanwhile.
func (p *program) start(ctx context.Context, stop <-chan struct{}) (serving bool, err error) {
	if p.source, err = newSource(p.cfg, p.log); err != nil {
		return false, err
	}
	if err := p.next.find(p); err != nil {
		return false, err
	}
	if err := p.open(ctx); err != nil {
		return false, err
	}
	p.forgetEarly(ctx)
	first := make(chan agent.Desired, 1)
	p.background.Go(func() {
		submit := func(d agent.Desired) { first <- d }
		p.source.Run(ctx, func(o kube.Objects) {
			submit(p.desired(o))
			submit = p.agent.Submit
		})
	})
	select {
	case <-stop:
		return false, nil
	case desired := <-first:
		ctx, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		if err := p.begin(ctx, desired); err != nil {
			return false, err
		}
		return true, nil
	}
}

// begin begins to serve: with what a running process has, or afresh.
func (p *program) begin(ctx context.Context, desired agent.Desired) error {
	ipv4, ipv6 := p.agent.IPv4, p.agent.IPv6
	taken, err := p.next.take(ctx)
	if err != nil {
		return err
	}
	if taken {
		p.keepTCP(ipv4, ipv6)
		p.agent.Submit(desired) // what was taken over is served until that is in force
		return nil
	}
	if p.claim, err = awaitClaim(ctx, claimPatience); err != nil {
		return err
	}
	// Rules of a process that has crashed steer clients to the ports as soon as they are open.
	p.agent.Prime(desired, p.before.Ported)
	p.agent.TCPPort, err = p.listenTCP(ipv4, ipv6)
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("--bind-address %s: %w: give an address of this node, or 0.0.0.0 for all", p.cfg.DataPath.BindAddress, err)
	case err != nil:
		return err
	}
	if err := p.probeRest(ctx); err != nil {
		return err
	}
	if err := p.agent.Apply(ctx, desired); err != nil {
		return fmt.Errorf("apply the first Services: %w", err)
	}
	return nil
}

// keepTCP goes on with the TCP proxy port that was taken over, unless this process is
// to listen elsewhere: then there is another, and the old ones stay open for what is
// steered there until the rules are written.
func (p *program) keepTCP(families ...agent.Family) {
	at := func(port uint16) (addrs []netip.AddrPort) {
		for _, f := range families {
			if f.Steer != nil {
				addrs = append(addrs, netip.AddrPortFrom(f.Bind, port))
			}
		}
		return addrs
	}
	old := p.tcp.Steered()
	missing := func(addr netip.AddrPort) bool { return !slices.Contains(old, addr) }
	if !p.cfg.DataPath.ProxyPortRange.Contains(p.agent.TCPPort) || slices.ContainsFunc(at(p.agent.TCPPort), missing) {
		port, err := p.listenTCP(families...)
		if err != nil {
			p.log.Error("the TCP proxy port stays where it was", zap.Error(err))
			return
		}
		p.agent.TCPPort = port
	}
	kept := at(p.agent.TCPPort)
	p.agent.Retired = slices.DeleteFunc(old, func(addr netip.AddrPort) bool { return slices.Contains(kept, addr) })
}

// open opens all that is needed to serve.
func (p *program) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p.before.Ported = make(map[lb.Frontend]uint16)
	ipv4, ipv6, err := p.families(ctx)
	if err != nil {
		return err
	}
	if p.loops, err = newLoops(p.cfg.DataPath.Loops); err != nil {
		return err
	}
	p.pollCards()
	if p.budget.Limit, err = descriptorLimit(p.cfg.DataPath.Loops); err != nil {
		return err
	}
	balancer := &lb.Balancer{Seed: uint64(time.Now().UnixNano())}
	p.tcp = &tcp.Server{Loops: p.loops, LB: balancer, OriginalDst: redirect.OriginalDst, Descriptors: &p.budget}
	p.udp = &udp.Server{Loops: p.loops, LB: balancer, Descriptors: &p.budget, IdleTimeout: p.cfg.DataPath.UDPTimeout, DisableGSO: p.gsoDisabled()}
	if p.sctp, err = p.newSCTP(balancer); err != nil {
		return err
	}
	p.agent = &agent.Agent{LB: balancer, TCP: p.tcp, UDP: p.udp, SCTP: p.sctp, IPv4: ipv4, IPv6: ipv6,
		Ports: p.cfg.DataPath.ProxyPortRange, Now: eventloop.Now, LocalAddrs: p.local.get, NodePorts: p.nodePorts,
		RefuseSCTP: func() bool { engine, _ := p.sctp.InUse(); return engine == sctp.Packet },
		Mode:       p.mode(), VerifyEvery: p.cfg.Kernel.SyncPeriod, WriteEvery: p.cfg.Kernel.MinSyncPeriod, Log: p.log}
	if err := p.local.watch(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		p.log.Info("the node's addresses are read at each change", zap.Error(err))
	}
	if p.events, err = p.newRecorder(); err != nil {
		return err
	}
	p.checks.Healthy, p.checks.Failed = p.healthy, p.tellCheck
	if err := p.serveHTTP(); err != nil {
		return err
	}
	p.events.Record(events.Starting())
	if p.cfg.DataPath.Mode == config.ModeWinUserspace {
		p.log.Debug("conntrack is left as it is: nothing is steered")
	} else if err := tuneConntrack(p.cfg, p.log); err != nil { // a host that does not let us is served as it is
		p.log.Warn("conntrack is not set up as asked for", zap.Error(err))
	}
	return nil
}

// newSCTP makes the SCTP server. An engine that is asked for is tried now; else the
// first SCTP Service decides, since to ask the kernel for SCTP is to load its module.
func (p *program) newSCTP(balancer *lb.Balancer) (*sctp.Server, error) {
	s := &sctp.Server{Config: sctp.Config{Loops: p.loops, LB: balancer, Descriptors: &p.budget}, Engine: p.cfg.DataPath.SCTPEngine,
		OnEngine: func(engine sctp.Engine, why string) {
			p.log.Info("forwarding SCTP", zap.Stringer("engine", engine), zap.String("why", why))
		}}
	if p.cfg.DataPath.SCTPEngine != sctp.Auto {
		if err := s.Choose(); err != nil {
			return nil, fmt.Errorf("--sctp-engine=%s: %w", p.cfg.DataPath.SCTPEngine, err)
		}
	}
	return s, nil
}

// families finds out how each address family can be steered. IPv4 has to be, IPv6
// is left alone, with a warning, where the host has none.
func (p *program) families(ctx context.Context) (ipv4, ipv6 agent.Family, err error) {
	if p.cfg.DataPath.Mode == config.ModeWinUserspace {
		return p.addressFamilies()
	}
	bind := func(unspecified netip.Addr) netip.Addr {
		if p.cfg.DataPath.BindAddress.Is6() == unspecified.Is6() {
			return p.cfg.DataPath.BindAddress
		}
		return unspecified
	}
	family := func(name string, t *redirect.IPTables, unspecified netip.Addr) (agent.Family, error) {
		t.BindAddr = bind(unspecified)
		f := agent.Family{Steer: t, Bind: t.BindAddr}
		left := t.Leftover(ctx)
		if p.before.TCPPort == 0 {
			p.before.TCPPort = left.TCPPort
		}
		maps.Copy(p.before.Ported, left.Ported)
		if left.TCPPort != 0 && !p.next.taking() {
			p.unprobed = append(p.unprobed, t) // those who are steered already are not kept waiting for that
		} else if err := p.probe(ctx, t, &f); err != nil {
			return agent.Family{}, err
		}
		p.steerers = append(p.steerers, t)
		p.served = append(p.served, metrics.Family{Name: name, Stats: p.early.withStats(t)})
		return f, nil
	}
	ipv4, err = family("IPv4", &redirect.IPTables{}, netip.IPv4Unspecified())
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return ipv4, ipv6, fmt.Errorf("--proxy-mode %s: %w: give winuserspace", p.cfg.DataPath.Mode, err)
	case err != nil:
		return ipv4, ipv6, err
	}
	ipv6, err = family("IPv6", &redirect.IPTables{IPv6: true}, netip.IPv6Unspecified())
	if err != nil {
		p.log.Warn("IPv6 Services are not served", zap.Error(err))
	}
	return ipv4, ipv6, nil
}

// probe finds out what rules the host takes, and what can forward in its kernel.
func (p *program) probe(ctx context.Context, t *redirect.IPTables, f *agent.Family) error {
	facts, err := t.Probe(ctx)
	if err != nil {
		return err
	}
	for _, warning := range facts.Warnings {
		p.log.Warn("iptables", zap.String("warning", warning))
	}
	p.log.Info("steering by iptables", zap.Bool("ipv6", t.IPv6), zap.String("version", facts.Version), zap.Bool("ipset", facts.IPSet))
	p.engines(ctx, f, t.IPv6)
	return nil
}

// probeRest is probe of the families that are served by the rules of a process that has
// crashed.
func (p *program) probeRest(ctx context.Context) error {
	for _, t := range p.unprobed {
		f := &p.agent.IPv4
		if t.IPv6 {
			f = &p.agent.IPv6
		}
		if err := p.probe(ctx, t, f); err != nil && !t.IPv6 {
			return err
		} else if err != nil {
			p.log.Warn("IPv6 Services are not served", zap.Error(err))
			*f = agent.Family{}
		}
	}
	return nil
}

// loadConntrack has the kernel load what rules need, by trying some: on a node on which
// nobody has written any yet there are no settings of conntrack.
func loadConntrack(log *zap.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if _, err := new(redirect.IPTables).Probe(ctx); err != nil {
		log.Warn("rules cannot be written here", zap.Error(err))
	}
}

// tuneConntrack sets what steered packets need.
func tuneConntrack(cfg config.Config, log *zap.Logger) error {
	warnings, err := cfg.Kernel.Conntrack.Apply()
	for _, warning := range warnings {
		log.Warn("conntrack", zap.String("warning", warning))
	}
	if apart := redirect.TellApart(); apart != nil {
		err = errors.Join(err, fmt.Errorf("have clients ask two Services from one port: %w", apart))
	}
	return err
}

// desired converts objects, and serves the health checks that they ask for.
func (p *program) desired(objects kube.Objects) agent.Desired {
	p.services.Store(&objects.Services)
	p.convert.Spare = p.agent.Spare()
	r := p.convert.Convert(objects, kube.Options{
		ServiceProxyName: p.cfg.Source.ServiceProxyName,
		Facts:            kube.Facts{NodeName: p.cfg.Node.Name, Zone: p.cfg.Node.Zone, Node: lb.Node{PodCIDRs: p.cfg.Node.Pods()}},
	})
	primary := r.Facts.Addresses
	p.primary.Store(&primary)
	// Without a Node manifest nothing speaks against it; a cluster has a Node.
	p.eligible.Store(!r.Facts.Leaving && (r.Facts.Known || !p.cfg.FromAPI()))
	wanted := p.healthChecks(r.HealthChecks)
	if err := p.checks.Sync(wanted); err != nil {
		p.log.Warn("a health check of a Service did not end well", zap.Error(err))
	}
	checks := slices.SortedFunc(maps.Keys(wanted), netip.AddrPort.Compare)
	return agent.Desired{Services: r.Services, Node: r.Facts.Node, Checks: checks, Changes: changes(r.Changes)}
}

// healthChecks returns where the health checks that Services ask for are served, and
// what is said there.
func (p *program) healthChecks(checks []kube.HealthCheck) map[netip.AddrPort]status.ServiceHealth {
	if len(checks) == 0 {
		return nil
	}
	wanted := make(map[netip.AddrPort]status.ServiceHealth)
	local, err := p.agent.NodeAddrs()
	if err != nil {
		p.log.Warn("no health check of a Service is served: the node's addresses cannot be read", zap.Error(err))
		return nil
	}
	for _, ip := range p.nodePorts(local) {
		for _, c := range checks {
			if ip.Is6() == c.IPv6 {
				wanted[netip.AddrPortFrom(ip, c.Port)] = status.ServiceHealth{Namespace: c.Namespace, Name: c.Name, LocalEndpoints: c.LocalEndpoints}
			}
		}
	}
	return wanted
}

// nodePorts returns where node ports listen, given the node's addresses.
func (p *program) nodePorts(local []netip.Addr) []netip.Addr {
	var primary []netip.Addr
	if known := p.primary.Load(); known != nil {
		primary = *known
	}
	return listenable(p.cfg.DataPath.NodePorts.Resolve(local, primary), local)
}

// listenTCP opens the proxy port of TCP, the same in each family that is served.
func (p *program) listenTCP(families ...agent.Family) (uint16, error) {
	var got netip.AddrPort
	bind := func(port uint16) (err error) {
		var open []netip.AddrPort
		for _, f := range families {
			if f.Steer == nil {
				continue
			}
			if got, err = p.tcp.ListenSteered(netip.AddrPortFrom(f.Bind, port)); err != nil {
				for _, addr := range open {
					p.tcp.Unlisten(addr)
				}
				return err
			}
			open = append(open, got)
			port = got.Port()
		}
		return nil
	}
	if p.before.TCPPort != 0 && p.cfg.DataPath.ProxyPortRange.Contains(p.before.TCPPort) && bind(p.before.TCPPort) == nil {
		return got.Port(), nil // what crashed left rules that lead here
	}
	for range 10 { // the port that the kernel chose for one family may be taken in the other
		_, err := p.cfg.DataPath.ProxyPortRange.Claim(bind)
		if err == nil || p.cfg.DataPath.ProxyPortRange.Size() > 0 {
			return got.Port(), err
		}
	}
	_, err := p.cfg.DataPath.ProxyPortRange.Claim(bind)
	return got.Port(), err
}

// drain stops accepting and waits for what is open, up to the drain timeout.
func (p *program) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.Process.DrainTimeout)
	defer cancel()
	p.log.Info("waiting for what is open to end", zap.Int64("tcp connections", p.tcp.Stats().Active),
		zap.Int64("udp flows", p.udp.Stats().Active), zap.Int64("sctp associations", p.sctp.Stats().Active), zap.Duration("for at most", p.cfg.Process.DrainTimeout))
	var all sync.WaitGroup
	for _, shutdown := range []func(context.Context) error{p.tcp.Shutdown, p.udp.Shutdown, p.sctp.Shutdown} {
		all.Go(func() {
			if err := shutdown(ctx); err != nil {
				p.log.Warn("drain timeout", zap.Error(err))
			}
		})
	}
	all.Wait()
}

// close ends whatever start has started.
func (p *program) close() error {
	if !p.cfg.Process.CleanupOnExit { // else the rules are still to be removed
		p.claim.release()
	}
	var errs []error
	if p.tcp != nil {
		p.tcp.Close()
	}
	if p.udp != nil {
		p.udp.Close()
	}
	if p.sctp != nil {
		p.sctp.Close()
	}
	for _, s := range p.http {
		errs = append(errs, s.Close())
	}
	errs = append(errs, p.checks.Close(), p.local.close())
	if p.events != nil {
		p.events.Close()
	}
	if p.loops != nil {
		errs = append(errs, p.loops.Close())
	}
	return errors.Join(errs...)
}
