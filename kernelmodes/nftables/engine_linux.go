package nftables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/lb"
)

// kernel is what an engine knows of its host, and what it wrote there last.
type kernel struct {
	content *content // nil until there has been something to write
	probed  bool
	clean   bool // an earlier process has left nothing

	endpoints endpoints // numbers of those that flows are sent to, with Ask

	counters             nft.Counters
	numbered, unnumbered atomic.Int64 // endpoints
}

// count notes how many endpoints have numbers.
func (e *Engine) count() {
	without := 0
	for _, n := range e.endpoints.unnumbered() {
		without += n
	}
	e.kernel.numbered.Store(int64(len(e.endpoints.given) - without))
	e.kernel.unnumbered.Store(int64(without))
}

func (e *Engine) sync(ctx context.Context, d *lb.Delta, node lb.Node) error {
	changes := e.content.changes(d, e.IPv6)
	if e.content == nil && len(changes) == 0 {
		return e.removeOld()
	}
	if err := e.probe(ctx); err != nil {
		return err
	}
	return e.write(e.shape(node), changes)
}

// write writes a change, or removes the table if there is nothing to forward any more.
func (e *Engine) write(s shape, changes []lb.Change) error {
	if e.content == nil {
		if err := e.keepNumbers(); err != nil {
			return err
		}
		t := &nft.Table{Name: e.table(), IPv6: e.IPv6, Lifetime: e.Lifetime, Counters: &e.counters}
		e.content = newContent(t, s)
		e.content.endpoints, e.endpoints.share = &e.endpoints, e.Ask.Share
	}
	e.content.edit(s, changes)
	if len(e.content.written) == 0 {
		e.content, e.clean = nil, false
		e.endpoints.clear()
		e.count()
		e.counters.Rules.Store(0)
		e.counters.Elements.Store(0)
		return e.removeOld()
	}
	if err := e.content.Write(); err != nil {
		return err
	}
	e.endpoints.settle()
	e.count()
	return nil
}

// shape returns how rules are written.
func (e *Engine) shape(node lb.Node) shape {
	return shape{
		ipv6: e.IPv6, mark: e.Mark(), all: e.MasqueradeAll, bridge: e.LocalBridge, interfaces: e.LocalInterfaces,
		pods: e.PodCIDRs(e.IPv6, node), ask: e.Ask,
	}
}

func (e *Engine) probe(context.Context) error {
	if e.probed {
		return nil
	}
	err := e.shape(lb.Node{}).trial().Try()
	if errors.Is(err, fs.ErrPermission) || err == nil {
		e.probed = err == nil
		return err
	}
	return fmt.Errorf("try the rules of Services: %w", err)
}

func (e *Engine) verify(ctx context.Context) (bool, error) {
	if e.content == nil {
		return true, nil
	}
	return e.content.Verify(ctx)
}

func (e *Engine) renew() error {
	if e.Lifetime == 0 {
		return nil
	}
	return nft.Renew(e.IPv6, e.table(), e.Lifetime)
}

func (e *Engine) stats() Stats {
	c := &e.counters
	return Stats{c.Transactions.Load(), c.Failures.Load(), int(c.Rules.Load()),
		int(c.Elements.Load()), int(e.kernel.numbered.Load()), int(e.kernel.unnumbered.Load())}
}

func (e *Engine) leftover(context.Context) (bool, error) {
	for _, set := range []string{setServices, setNodePorts} {
		if list, err := e.left(set); err != nil || len(list) > 0 {
			return err == nil, err
		}
	}
	return false, nil
}

// left returns what a set has that is there, be it left by an earlier process.
func (e *Engine) left(set string) ([]nft.Client, error) {
	list, err := (&nft.Table{Name: e.table(), IPv6: e.IPv6}).Read(set)
	if errors.Is(err, syscall.ENOENT) || nfnl.NoSubsystem(err) {
		return nil, nil
	}
	return list, err
}

// removeOld removes what an earlier process has left, once, if there is nothing to forward.
func (e *Engine) removeOld() error {
	if e.clean {
		return nil
	}
	_, err := nft.Remove(e.IPv6, e.table())
	e.clean = err == nil
	return err
}

func cleanup(context.Context) error {
	return netfilter.EachFamily(func(ipv6 bool) error {
		_, err := nft.Remove(ipv6, table)
		_, err2 := nft.Remove(ipv6, queued)
		return errors.Join(err, err2)
	})
}

// trial is a table with one of each kind of rule, set and element.
func (s shape) trial() *nft.Table {
	addr := netip.MustParseAddr("192.0.2.1") // documentation addresses (RFC 5737, RFC 3849)
	if s.ipv6 {
		addr = netip.MustParseAddr("2001:db8::1")
	}
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }
	s.bridge, s.interfaces, s.pods = "cni0", "veth", []netip.Prefix{netip.PrefixFrom(addr, 24)}
	backend := func(port uint16) lb.Backend { return lb.Backend{Addr: at(port), Ready: true, Local: true} }
	plain := &lb.Service{
		ID: lb.ID{Name: "plain", Protocol: lb.UDP, IPv6: s.ipv6},
		Addresses: []lb.Address{{Addr: at(1)}, {
			Addr: at(2), Kind: lb.LoadBalancerIP, Local: true, Sources: []netip.Prefix{netip.PrefixFrom(addr, 8)},
		}, {Addr: netip.AddrPortFrom(netfilter.Unspecified(s.ipv6), 1), Kind: lb.NodePort, Local: true}},
		Backends: []lb.Backend{backend(3), backend(4)},
	}
	affine, refused := *plain, *plain
	affine.Name, affine.Addresses, affine.AffinityTimeout = "affine", []lb.Address{{Addr: at(5)}}, 1e9
	refused.Name, refused.Addresses, refused.Backends = "refused", []lb.Address{{Addr: at(6)}}, nil
	c := newContent(&nft.Table{Name: trial, IPv6: s.ipv6}, s)
	var d lb.Delta
	for _, service := range []*lb.Service{plain, &affine, &refused} {
		d.Note(nil, service)
	}
	c.edit(s, c.changes(&d, s.ipv6))
	if s.ask.Count > 0 {
		s.queues(c.Table, true)
	}
	return c.Table
}
