package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/kube"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/manifest"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/metrics"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/status"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// startTimeout bounds the first writing of rules, which may wait for the xtables lock.
const startTimeout = time.Minute

// program is the rooms of one running Sluice.
type program struct {
	cfg config.Config
	log *zap.Logger

	loader    *manifest.Loader
	manifests atomic.Pointer[manifest.Result]
	loops     *eventloop.Group
	budget    eventloop.Budget
	tcp       *tcp.Server
	udp       *udp.Server
	agent     *agent.Agent
	convert   kube.Converter
	checks    status.ServiceChecks // this and convert are of the goroutine that calls desired
	http      []*status.Server
	primary   atomic.Pointer[[]netip.Addr] // by which others know the node, from its Node object
	stopping  atomic.Bool
}

// serve runs until stop is closed. An error is one of the start: by then nothing
// is left running, and no traffic has been steered that was not before.
func serve(cfg config.Config, log *zap.Logger, stop <-chan struct{}) error {
	p := &program{cfg: cfg, log: log}
	if err := p.start(); err != nil {
		return errors.Join(err, p.close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var background sync.WaitGroup
	background.Go(func() { p.agent.Run(ctx) })
	background.Go(func() { p.watch(ctx) })
	log.Info("serving", zap.String("version", version), zap.String("mode", cfg.Mode),
		zap.Int("service ports", p.agent.Status().Services), zap.Int("loops", cfg.Loops),
		zap.Uint16("tcp proxy port", p.agent.TCPPort), zap.Int64("descriptors for connections", p.budget.Limit))

	<-stop
	p.stopping.Store(true) // probes fail from now on, so that others send no more
	cancel()
	background.Wait()
	p.drain()
	if err := p.close(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	log.Info("stopped; the rules stay for the next start, sluice --cleanup removes them")
	return nil
}

// start brings everything up, what can fail for a reason of the configuration first.
func (p *program) start() error {
	objects, err := p.load()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	ipv4, ipv6, err := p.families(ctx)
	if err != nil {
		return err
	}
	if p.loops, err = eventloop.NewGroup(p.cfg.Loops); err != nil {
		return err
	}
	if p.budget.Limit, err = descriptorLimit(); err != nil {
		return err
	}
	balancer := &lb.Balancer{Seed: uint64(time.Now().UnixNano())}
	p.tcp = &tcp.Server{Loops: p.loops, LB: balancer, OriginalDst: redirect.OriginalDst, Descriptors: &p.budget}
	p.udp = &udp.Server{Loops: p.loops, LB: balancer, Descriptors: &p.budget, IdleTimeout: p.cfg.UDPTimeout}
	port, err := p.listenTCP(ipv4, ipv6)
	if err != nil {
		return err
	}
	p.agent = &agent.Agent{LB: balancer, TCP: p.tcp, UDP: p.udp, IPv4: ipv4, IPv6: ipv6, TCPPort: port,
		Ports: p.cfg.ProxyPortRange, Now: eventloop.Now, LocalAddrs: localAddrs, NodePorts: p.nodePorts,
		VerifyEvery: p.cfg.SyncPeriod, Log: p.log}
	p.checks.Healthy = p.healthy
	if err := p.serveHTTP(); err != nil {
		return err
	}
	p.tuneConntrack()
	if err := p.agent.Apply(ctx, p.desired(objects)); err != nil {
		return fmt.Errorf("apply the first Services: %w", err)
	}
	return nil
}

// families finds out how each address family can be steered. IPv4 has to be, IPv6
// is left alone, with a warning, where the host has none.
func (p *program) families(ctx context.Context) (ipv4, ipv6 agent.Family, err error) {
	bind := func(unspecified netip.Addr) netip.Addr {
		if p.cfg.BindAddress.Is6() == unspecified.Is6() {
			return p.cfg.BindAddress
		}
		return unspecified
	}
	family := func(t *redirect.IPTables, unspecified netip.Addr) (agent.Family, error) {
		t.BindAddr = bind(unspecified)
		facts, err := t.Probe(ctx)
		if err != nil {
			return agent.Family{}, err
		}
		for _, warning := range facts.Warnings {
			p.log.Warn("iptables", zap.String("warning", warning))
		}
		p.log.Info("steering by iptables", zap.Bool("ipv6", t.IPv6), zap.String("version", facts.Version), zap.Bool("ipset", facts.IPSet))
		return agent.Family{Steer: t, Bind: t.BindAddr}, nil
	}
	if ipv4, err = family(&redirect.IPTables{}, netip.IPv4Unspecified()); err != nil {
		return ipv4, ipv6, err
	}
	ipv6, err = family(&redirect.IPTables{IPv6: true}, netip.IPv6Unspecified())
	if err != nil {
		p.log.Warn("IPv6 Services are not served", zap.Error(err))
	}
	return ipv4, ipv6, nil
}

// tuneConntrack sets what steered packets need. A host that does not let us is
// served as it is.
func (p *program) tuneConntrack() {
	warnings, err := p.cfg.Conntrack.Apply()
	for _, warning := range warnings {
		p.log.Warn("conntrack", zap.String("warning", warning))
	}
	if err != nil {
		p.log.Warn("conntrack is not set up as asked for", zap.Error(err))
	}
}

// desired converts objects, and serves the health checks that they ask for.
func (p *program) desired(objects kube.Objects) agent.Desired {
	r := p.convert.Convert(objects, kube.Options{
		ServiceProxyName: p.cfg.ServiceProxyName,
		Facts:            kube.Facts{NodeName: p.cfg.NodeName, Zone: p.cfg.NodeZone, Node: lb.Node{PodCIDRs: p.cfg.PodCIDRs}},
	})
	primary := r.Facts.Addresses
	p.primary.Store(&primary)
	wanted := make(map[netip.AddrPort]status.ServiceHealth)
	if local, err := localAddrs(); err == nil {
		for _, c := range r.HealthChecks {
			for _, ip := range p.nodePorts(local) {
				if ip.Is6() == c.IPv6 {
					wanted[netip.AddrPortFrom(ip, c.Port)] = status.ServiceHealth{Namespace: c.Namespace, Name: c.Name, LocalEndpoints: c.LocalEndpoints}
				}
			}
		}
	}
	if err := p.checks.Sync(wanted); err != nil {
		p.log.Warn("a health check of a Service is not served", zap.Error(err))
	}
	return agent.Desired{Services: r.Services, Node: r.Facts.Node}
}

// nodePorts returns where node ports listen, given the node's addresses.
func (p *program) nodePorts(local []netip.Addr) []netip.Addr {
	var primary []netip.Addr
	if known := p.primary.Load(); known != nil {
		primary = *known
	}
	return p.cfg.NodePorts.Resolve(local, primary)
}

// localAddrs returns the addresses of the node, sorted. Link-local ones are left
// out: they mean nothing without an interface.
func localAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr().Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// load reads the manifests for the first time. Any problem ends the program:
// there is no last good state to fall back to yet.
func (p *program) load() (kube.Objects, error) {
	p.loader = &manifest.Loader{Paths: p.cfg.Manifests}
	result, _ := p.loader.Load()
	p.manifests.Store(&result)
	var errs []error
	for _, problem := range result.Problems {
		errs = append(errs, problem)
	}
	for _, warning := range result.Warnings {
		p.log.Warn("manifest", zap.Error(warning))
	}
	return result.Objects, errors.Join(errs...)
}

// watch submits what the manifests say from now on, until ctx ends.
func (p *program) watch(ctx context.Context) {
	p.loader.Watch(ctx, func(result manifest.Result) {
		problems, warnings := result.Since(*p.manifests.Swap(&result))
		for _, problem := range problems {
			p.log.Error("manifest not in force, the last good state of the file stays", zap.Error(problem))
		}
		for _, warning := range warnings {
			p.log.Warn("manifest", zap.Error(warning))
		}
		p.log.Debug("manifests read", zap.Int("files", result.Files), zap.Int("objects", result.Objects.Len()))
		p.agent.Submit(p.desired(result.Objects))
	})
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
	for range 10 { // the port that the kernel chose for one family may be taken in the other
		_, err := p.cfg.ProxyPortRange.Claim(bind)
		if err == nil || p.cfg.ProxyPortRange.Size() > 0 {
			return got.Port(), err
		}
	}
	_, err := p.cfg.ProxyPortRange.Claim(bind)
	return got.Port(), err
}

// healthy reports whether the data path is up to date.
func (p *program) healthy() bool {
	s := p.agent.Status()
	return !p.stopping.Load() && s.Applied > 0 && s.Healthy(time.Now())
}

func (p *program) serveHTTP() error {
	health := func() status.Health {
		return status.Health{Healthy: p.healthy(), LastUpdated: p.agent.Status().LastApplied}
	}
	m := metrics.New(version, metrics.Sources{TCP: p.tcp.Stats, UDP: p.udp.Stats, Agent: p.agent.Status,
		Manifests: func() manifest.Result { return *p.manifests.Load() }, Descriptors: &p.budget})
	p.agent.Observe = m.ObserveSync
	if p.cfg.HealthzAddress != "" {
		s, err := status.Listen(p.cfg.HealthzAddress, status.HealthHandler(health))
		if err != nil {
			return fmt.Errorf("--healthz-bind-address: %w", err)
		}
		p.http = append(p.http, s)
	}
	if p.cfg.MetricsAddress != "" {
		s, err := status.Listen(p.cfg.MetricsAddress, status.MetricsHandler(p.cfg.Mode, m.Handler()))
		if err != nil {
			return fmt.Errorf("--metrics-bind-address: %w", err)
		}
		p.http = append(p.http, s)
	}
	return nil
}

// drain stops accepting and waits for what is open, up to the drain timeout.
func (p *program) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.DrainTimeout)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() {
		if err := p.tcp.Shutdown(ctx); err != nil {
			p.log.Warn("drain timeout", zap.Error(err))
		}
	})
	both.Go(func() {
		if err := p.udp.Shutdown(ctx); err != nil {
			p.log.Warn("drain timeout", zap.Error(err))
		}
	})
	both.Wait()
}

// close ends whatever start has started.
func (p *program) close() error {
	var errs []error
	if p.tcp != nil {
		p.tcp.Close()
	}
	if p.udp != nil {
		p.udp.Close()
	}
	for _, s := range p.http {
		errs = append(errs, s.Close())
	}
	errs = append(errs, p.checks.Close())
	if p.loops != nil {
		errs = append(errs, p.loops.Close())
	}
	return errors.Join(errs...)
}
