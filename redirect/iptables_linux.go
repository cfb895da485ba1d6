package redirect

import (
	"context"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// kernel is what a steerer by iptables knows of its host, and what it wrote.
type kernel struct {
	steerer
	netfilter netfilter.Counters

	program *netfilter.IPTables // nil until found
	probed  bool                // the following are complete
	shape   shape
	facts   Facts
}

func (t *IPTables) sync(ctx context.Context, u Update) error {
	return t.steerer.sync(ctx, t, t.IPv6, u)
}

// open implements filter.
func (t *IPTables) open(ctx context.Context, host Host, entries map[lb.Frontend]Entry) (rules, error) {
	if _, err := t.probe(ctx); err != nil {
		return nil, err
	}
	return newRuleset(t.shape, t.program, &t.netfilter, host, entries), nil
}

// read implements filter.
func (t *IPTables) read(ctx context.Context) (Leftover, error) {
	left, err := leftoverTable(t.IPv6)
	if err != nil || left.TCPPort != 0 || len(left.Ported) > 0 {
		return left, err
	}
	rules, err := steeringRules(ctx, t.program)
	return leftoverRules(rules, t.IPv6), err
}

// succeed implements filter.
func (t *IPTables) succeed(ctx context.Context) error {
	if _, err := removeTable(t.IPv6); err != nil {
		return err
	}
	return t.removeOldMode(ctx)
}

// write makes the kernel hold the ruleset.
func (r *ruleset) write(ctx context.Context) error {
	r.render()
	for _, j := range jumps {
		if j.First = true; j.Table != "mangle" || r.screens > 0 {
			r.AddJump(j)
		}
	}
	return r.Write(ctx, nil)
}

func (t *IPTables) verify(ctx context.Context) (bool, error) {
	if _, err := t.probe(ctx); err != nil || t.rules == nil {
		return false, err
	}
	return t.rules.Verify(ctx)
}
