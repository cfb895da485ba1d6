package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// kernel is what an engine knows of its host, and what it wrote there last.
type kernel struct {
	program *netfilter.IPTables // nil until probed
	facts   Facts
	content *content // nil until there has been something to write
	clean   bool     // an earlier process has left nothing

	counters netfilter.Counters
}

func (e *Engine) sync(ctx context.Context, d *lb.Delta, node lb.Node) error {
	changes := e.content.changes(d, e.IPv6)
	if e.content == nil && len(changes) == 0 {
		return e.removeOld(ctx)
	}
	if _, err := e.probe(ctx); err != nil {
		return err
	}
	s := e.shape(node)
	if e.content == nil {
		l := layout(e.IPv6)
		l.Counters, l.Lease = &e.counters, e.Lease
		e.content = newContent(netfilter.NewRuleset(e.program, l), s)
	}
	e.content.edit(s, changes)
	return e.content.Write(ctx, nil)
}

func (e *Engine) stats() Stats {
	rules := e.counters.Rules()
	return Stats{e.counters.Restores.Load(), rules["nat"], rules["filter"]}
}

// shape returns how rules are written.
func (e *Engine) shape(node lb.Node) shape {
	return shape{
		ipv6: e.IPv6, mark: e.Mark(), all: e.MasqueradeAll, liberal: e.Liberal,
		randomFully: e.facts.RandomFully, bpf: e.facts.BPF, noLocalhost: e.NoLocalhost, local: e.Pods(e.IPv6, node),
	}
}

// removeOld removes what an earlier process has left, once, if there is nothing to forward.
func (e *Engine) removeOld(ctx context.Context) error {
	if e.clean {
		return nil
	}
	_, err := netfilter.RemoveChains(ctx, remains(e.IPv6), nil)
	e.clean = err == nil
	return err
}

func (e *Engine) leftover(ctx context.Context) (bool, error) {
	program, err := netfilter.Open(ctx, e.Command, e.IPv6)
	if err != nil {
		return false, err
	}
	chains, err := program.Chains(ctx, "nat")
	return slices.ContainsFunc(chains, func(chain string) bool { return inUse("nat", chain) }), err
}

func (e *Engine) probe(ctx context.Context) (Facts, error) {
	if e.program != nil {
		return e.facts, nil
	}
	program, err := netfilter.Open(ctx, e.Command, e.IPv6)
	if err != nil {
		return Facts{}, err
	}
	var facts Facts
	for _, facts = range []Facts{{RandomFully: true, BPF: true}, {RandomFully: true}, {BPF: true}, {}} {
		s := e.shape(lb.Node{})
		s.randomFully, s.bpf = facts.RandomFully, facts.BPF
		if err = s.trial(program).Try(ctx); err == nil || errors.Is(err, netfilter.ErrLocked) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return Facts{}, fmt.Errorf("try the rules of Services: %w", err)
	}
	facts.Version = program.Version
	e.program, e.facts = program, facts
	return facts, nil
}

func (e *Engine) verify(ctx context.Context) (bool, error) {
	if e.content == nil {
		return true, nil
	}
	return e.content.Verify(ctx)
}

func cleanup(ctx context.Context) error {
	return netfilter.EachFamily(func(ipv6 bool) error { return netfilter.Remove(ctx, remains(ipv6), nil) })
}
