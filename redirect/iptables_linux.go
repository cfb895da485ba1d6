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
	options
	count *counters

	program *netfilter.IPTables // nil until found
	probed  bool                // the following are complete
	shape   shape
	facts   Facts

	host    Host
	entries map[lb.Frontend]Entry
	rules   *ruleset // nil before the first Sync that could probe

	oldGone bool // kube-proxy's userspace mode has no chains left
	started bool // UDP frontends of an earlier process were looked for

	// changed are UDP frontends whose conntrack entries have not been looked at
	// since a change. They outlive a failed Sync.
	changed map[netip.AddrPort]bool
}

func (k *kernel) sync(ctx context.Context, u Update) error {
	p, err := u.family(k.IPv6)
	if err != nil {
		return err
	}
	if err := k.fold(u.Whole, p); err != nil {
		return err
	}
	if _, err := k.probe(ctx); err != nil {
		return err
	}
	if k.rules == nil {
		k.rules = newRuleset(k.shape, netfilter.NewRuleset(k.program, k.shape.layout(&k.count.netfilter)), k.host,
			k.entries)
	}
	if !k.rules.Known() {
		k.changeAll() // rules may have been lost
		if err := k.readSteered(); err != nil {
			return err
		}
	}
	if err := k.write(ctx); err != nil {
		return err
	}
	if err := k.removeOldMode(ctx); err != nil {
		return err
	}
	return k.deleteStaleFlows()
}

// fold brings the entries, and the ruleset if there is one, to what they are after an
// update, which changes nothing if it contradicts them.
func (k *kernel) fold(whole bool, p part) error {
	goes := make(map[lb.Frontend]bool, len(p.gone))
	for _, f := range p.gone {
		goes[f] = true
	}
	if whole {
		for f := range k.entries {
			goes[f] = true
		}
	}
	var gone, come []Entry
	for f, e := range p.come {
		was, there := k.entries[f]
		switch {
		case there && was.equal(e):
			delete(goes, f)
		case there && !goes[f]:
			return contradiction(f, was.conflict(e))
		default:
			come = append(come, e)
		}
	}
	for f := range goes {
		if e, there := k.entries[f]; there {
			gone = append(gone, e)
			delete(k.entries, f)
		}
	}
	if k.entries == nil {
		k.entries = make(map[lb.Frontend]Entry, len(come))
	}
	for _, e := range come {
		k.entries[e.Frontend] = e
	}
	if !p.host.equal(k.host) {
		k.changeAll()
	}
	for _, e := range slices.Concat(gone, come) {
		k.change(e.Frontend)
	}
	k.host = p.host
	if k.rules != nil {
		k.rules.change(gone, come)
		k.rules.setHost(p.host)
	}
	return nil
}

// write makes the kernel hold the ruleset.
func (k *kernel) write(ctx context.Context) error {
	k.rules.render()
	for _, j := range jumps {
		if j.Position = netfilter.First; j.Table != "mangle" || k.rules.screens > 0 {
			k.rules.AddJump(j)
		}
	}
	if err := k.rules.Write(ctx, nil); err != nil {
		return err
	}
	var counts []TableRules
	for _, t := range tables {
		counts = append(counts, TableRules{t.name, k.rules.Rules(t.name)})
	}
	k.count.rules.Store(&counts)
	return nil
}

func (k *kernel) verify(ctx context.Context) (bool, error) {
	if _, err := k.probe(ctx); err != nil || k.rules == nil {
		return false, err
	}
	return k.rules.Verify(ctx)
}

// readSteered adds, the first time, the UDP frontends to changed that an earlier process
// has redirected.
func (k *kernel) readSteered() error {
	if k.started {
		return nil
	}
	chains, err := k.program.Chains("nat")
	if err != nil {
		return err
	}
	for _, c := range chains {
		if !own("nat", c) {
			continue
		}
		rules, err := k.program.Rules(netfilter.Place{Table: "nat", Chain: c})
		if err != nil {
			return err
		}
		for f := range steeredBy(rules, k.IPv6) {
			k.change(f)
		}
	}
	k.started = true
	return nil
}

// change adds to changed, if the frontend is one of UDP.
func (k *kernel) change(f lb.Frontend) {
	if f.Protocol != lb.UDP {
		return
	}
	if k.changed == nil {
		k.changed = make(map[netip.AddrPort]bool)
	}
	k.changed[f.Addr] = true
}

func (k *kernel) changeAll() {
	for f := range maps.Keys(k.entries) {
		k.change(f)
	}
}
