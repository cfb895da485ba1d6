package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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
	steer     *redirect.IPTables
	loops     *eventloop.Group
	budget    eventloop.Budget
	tcp       *tcp.Server
	udp       *udp.Server
	agent     *agent.Agent
	http      []*status.Server
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
	p.steer = &redirect.IPTables{}
	if p.cfg.BindAddress.IsValid() && !p.cfg.BindAddress.IsUnspecified() {
		p.steer.BindAddr = p.cfg.BindAddress
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	facts, err := p.steer.Probe(ctx)
	if err != nil {
		return err
	}
	for _, warning := range facts.Warnings {
		p.log.Warn("iptables", zap.String("warning", warning))
	}
	p.log.Info("steering by iptables", zap.String("version", facts.Version), zap.Bool("ipset", facts.IPSet))
	if p.loops, err = eventloop.NewGroup(p.cfg.Loops); err != nil {
		return err
	}
	if p.budget.Limit, err = descriptorLimit(); err != nil {
		return err
	}
	balancer := &lb.Balancer{Seed: uint64(time.Now().UnixNano())}
	p.tcp = &tcp.Server{Loops: p.loops, LB: balancer, OriginalDst: redirect.OriginalDst, Descriptors: &p.budget}
	p.udp = &udp.Server{Loops: p.loops, LB: balancer, Descriptors: &p.budget, IdleTimeout: p.cfg.UDPTimeout}
	port, err := p.listenTCP()
	if err != nil {
		return err
	}
	p.agent = &agent.Agent{LB: balancer, UDP: p.udp, Steer: p.steer, TCPPort: port, Bind: p.cfg.BindAddress,
		Ports: p.cfg.ProxyPortRange, Now: eventloop.Now, Log: p.log}
	if err := p.serveHTTP(); err != nil {
		return err
	}
	if err := p.agent.Apply(ctx, kube.Convert(objects)); err != nil {
		return fmt.Errorf("apply the first Services: %w", err)
	}
	return nil
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
		p.agent.Submit(kube.Convert(result.Objects))
	})
}

func (p *program) listenTCP() (uint16, error) {
	var got netip.AddrPort
	_, err := p.cfg.ProxyPortRange.Claim(func(port uint16) (err error) {
		got, err = p.tcp.ListenSteered(netip.AddrPortFrom(p.cfg.BindAddress, port))
		return err
	})
	return got.Port(), err
}

func (p *program) serveHTTP() error {
	health := func() status.Health {
		s := p.agent.Status()
		return status.Health{Healthy: !p.stopping.Load() && s.Applied > 0 && s.Healthy(time.Now()), LastUpdated: s.LastApplied}
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
	if p.loops != nil {
		errs = append(errs, p.loops.Close())
	}
	return errors.Join(errs...)
}
