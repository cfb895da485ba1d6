package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/bench/stats"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/iptables"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
)

// offloadWorkloads show what it costs that the kernel forwards Services: the engines of
// kernelmodes alone, on a node of their own.
func offloadWorkloads() []workload {
	var all []workload
	for _, mode := range []string{"nftables", "iptables", "ipvs"} {
		for _, n := range []int{1000, 5000, 10000} {
			all = append(all, workload{
				name: fmt.Sprintf("offload-%s-%d", mode, n), alone: true, asked: true,
				about: fmt.Sprintf("changes of %d Services of %d endpoints in the kernel, by %s", n, offloadEndpoints,
					mode),
				run: func(ctx context.Context, _ *lab, _ *running, _ time.Duration) ([]figure, error) {
					return measureOffload(ctx, mode, n)
				},
			})
		}
	}
	return all
}

const (
	offloadEndpoints = 10 // of each Service
	offloadChanges   = 5  // of one Service; the median counts
)

// engine is what forwards.
type engine interface {
	Sync(context.Context, lb.Delta, lb.Node) error
	Verify(context.Context) (bool, error)
}

// offload is a node with an engine.
type offload struct {
	*testbed.Testbed
	engine
	size     func() int // rules and elements, or virtual and real servers, in the kernel
	table    *lb.Table
	services []*lb.Service
	node     lb.Node
}

// newOffload returns a node whose engine has nothing to do yet. The caller closes it.
func newOffload(ctx context.Context, mode string) (*offload, error) {
	tb, err := testbed.New(testbed.Config{Pods: 1})
	if err != nil {
		return nil, err
	}
	l := &offload{Testbed: tb, table: new(lb.Table), node: lb.Node{
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Addresses: []netip.Addr{tb.Node.Addr4},
	}}
	var probe func() error
	switch mode {
	case "nftables":
		e := new(nftables.Engine)
		l.engine, l.size = e, func() int { s := e.Stats(); return s.Rules + s.Elements }
		probe = func() error { return e.Probe(ctx) }
	case "iptables":
		e := new(iptables.Engine)
		l.engine, l.size = e, func() int { s := e.Stats(); return int(s.NATRules + s.FilterRules) }
		probe = func() error { _, err := e.Probe(ctx); return err }
	default:
		e := new(ipvs.Engine)
		l.engine, l.size = e, func() int { s := e.Stats(); return int(s.VirtualServers + s.RealServers) }
		probe = func() error { return e.Probe(ctx) }
	}
	if err := tb.Node.Do(probe); err != nil {
		tb.Close()
		return nil, err
	}
	return l, nil
}

func measureOffload(ctx context.Context, mode string, n int) ([]figure, error) {
	l, err := newOffload(ctx, mode)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	server, err := l.Pods[0].WhoTCP(":8080")
	if err != nil {
		return nil, err
	}
	defer server.Close()
	for i := range n {
		l.services = append(l.services, offloaded(i, offloadEndpoints))
	}
	// The last is asked, and has the one endpoint that there is.
	asked := offloaded(n, 1)
	asked.Backends = []lb.Backend{{Addr: netip.AddrPortFrom(l.Pods[0].Addr4, 8080), Ready: true}}
	l.services = append(l.services, asked)

	sync := func(int) error { return l.sync(ctx) }
	verify := func(int) error { return l.verify(ctx) }
	var figures []figure
	for _, step := range []struct {
		name  string
		times int
		do    func(time int) error
	}{
		{"first sync", 1, sync},
		{"one endpoint", offloadChanges, func(i int) error {
			l.services[n/2] = offloaded(n/2, offloadEndpoints-1+i%2)
			return l.sync(ctx)
		}},
		{"one Service", offloadChanges, func(i int) error {
			if l.services = l.services[:n+1]; i%2 == 0 {
				l.services = append(l.services, offloaded(n+1, offloadEndpoints))
			}
			return l.sync(ctx)
		}},
		{"no change", offloadChanges, sync},
		{"verify all", 1, verify}, // the first reads everything
		{"verify", 1, verify},
		{"first byte", 20 * offloadChanges, func(int) error {
			_, err := l.Client.Who(asked.Addresses[0].Addr.String())
			return err
		}},
	} {
		var took []float64
		for i := range step.times {
			start := time.Now()
			if err := step.do(i); err != nil {
				return figures, fmt.Errorf("%s: %w", step.name, err)
			}
			took = append(took, ms(time.Since(start)))
		}
		figures = append(figures, figure{step.name, "ms", stats.Median(took)})
	}
	return append(figures, figure{"rules", "", float64(l.size())}), nil
}

func (l *offload) sync(ctx context.Context) error {
	table, d, err := l.table.Next(l.services, l.node)
	if err != nil {
		return err
	}
	l.table = table
	return l.Node.Do(func() error { return l.Sync(ctx, d, l.node) })
}

func (l *offload) verify(ctx context.Context) error {
	return l.Node.Do(func() error {
		ok, err := l.Verify(ctx)
		if err == nil && !ok {
			err = errors.New("the rules in the kernel differ from the written ones")
		}
		return err
	})
}

// offloaded returns Service number i, whose endpoints do not exist.
func offloaded(i, endpoints int) *lb.Service {
	s := &lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprint("service-", i), Protocol: lb.TCP}}
	addr := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
	s.Addresses = []lb.Address{{Addr: netip.AddrPortFrom(addr, 80)}}
	for k := range endpoints {
		pod := netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), byte(1 + k)})
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(pod, 8080), Ready: true})
	}
	return s
}
