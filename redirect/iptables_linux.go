package redirect

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// kernel is what a steerer knows of its host, what is to be there, and what it wrote.
type kernel struct {
	program *netfilter.IPTables // nil until found
	probed  bool                // the following are complete
	shape   shape
	facts   Facts

	host    Host
	entries map[lb.Frontend]Entry
	rules   *ruleset // nil before the first Sync that could probe

	started bool // what an earlier process, and kube-proxy's userspace mode, have left is gone

	// changed are UDP frontends whose conntrack entries have not been looked at
	// since a change. They outlive a failed Sync.
	changed map[netip.AddrPort]bool
}

func (t *IPTables) sync(ctx context.Context, u Update) error {
	p, err := u.family(t.IPv6)
	if err != nil {
		return err
	}
	if err := t.fold(u.Whole, p); err != nil {
		return err
	}
	if _, err := t.probe(ctx); err != nil {
		return err
	}
	if t.rules == nil {
		t.rules = newRuleset(t.shape, t.program, &t.netfilter, t.host, t.entries)
	}
	if !t.rules.Known() {
		t.changeAll() // rules may have been lost
	}
	if !t.started {
		left, err := t.read(ctx)
		if err != nil {
			return err
		}
		for f := range left.Ported {
			t.change(f)
		}
	}
	if err := t.write(ctx); err != nil {
		return err
	}
	if !t.started {
		if err := t.removeOldMode(ctx); err != nil {
			return err
		}
		t.started = true
	}
	return t.deleteStaleFlows()
}

// fold brings the entries, and the ruleset if there is one, to what they are after an
// update, which changes nothing if it contradicts them.
func (t *IPTables) fold(whole bool, p part) error {
	going := slices.Values(p.gone)
	if whole {
		going = maps.Keys(t.entries)
	}
	goes := make(map[lb.Frontend]bool)
	for f := range going {
		goes[f] = true
	}
	var gone, come []Entry
	for f, e := range p.come {
		was, there := t.entries[f]
		switch {
		case there && was.Equal(e):
			delete(goes, f)
		case there && !goes[f]:
			return contradiction(f, was.conflict(e))
		default:
			come = append(come, e)
		}
	}
	for f := range goes {
		if e, there := t.entries[f]; there {
			gone = append(gone, e)
			delete(t.entries, f)
		}
	}
	if t.entries == nil {
		t.entries, t.changed = make(map[lb.Frontend]Entry, len(come)), make(map[netip.AddrPort]bool)
	}
	for _, e := range come {
		t.entries[e.Frontend] = e
	}
	if !p.host.equal(t.host) {
		t.changeAll()
	}
	for _, e := range slices.Concat(gone, come) {
		if !e.passes() {
			t.change(e.Frontend)
		}
	}
	t.host = p.host
	if t.rules != nil {
		t.rules.change(gone, come)
		t.rules.setHost(p.host)
	}
	return nil
}

// write makes the kernel hold the ruleset.
func (t *IPTables) write(ctx context.Context) error {
	t.rules.render()
	for _, j := range jumps {
		if j.Position = netfilter.First; j.Table != "mangle" || t.rules.screens > 0 {
			t.rules.AddJump(j)
		}
	}
	return t.rules.Write(ctx, nil)
}

func (t *IPTables) verify(ctx context.Context) (bool, error) {
	if _, err := t.probe(ctx); err != nil || t.rules == nil {
		return false, err
	}
	return t.rules.Verify(ctx)
}

// change adds to changed, if the frontend is one of UDP.
func (t *IPTables) change(f lb.Frontend) {
	if f.Protocol == lb.UDP {
		t.changed[f.Addr] = true
	}
}

func (t *IPTables) changeAll() {
	for f, e := range t.entries {
		if !e.passes() {
			t.change(f)
		}
	}
}
