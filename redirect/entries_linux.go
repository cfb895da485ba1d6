package redirect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// ruleset is what the entries of one family come to in netfilter. An entry that comes or
// goes changes members of sets and rules in buckets. The other chains do not depend on
// most entries, and are rendered whole.
type ruleset struct {
	shape
	*netfilter.Ruleset
	host    Host
	entries map[lb.Frontend]Entry
	screens int  // entries that some clients may not ask
	closed  int  // node ports that are screened
	stale   bool // chains are to be rendered
}

// newRuleset returns the ruleset of some entries, which it keeps. program and counters may be nil.
func newRuleset(s shape, program *netfilter.IPTables, counters *netfilter.Counters, host Host,
	entries map[lb.Frontend]Entry) *ruleset {
	x := &ruleset{shape: s, Ruleset: netfilter.NewRuleset(program, s.layout(counters)),
		host: host, entries: entries, stale: true}
	x.SetChain(netfilter.Place{Table: "nat", Chain: s.chain(chainUDP)}, nil) // for buckets
	x.hostMembers(1)
	x.change(nil, slices.SortedFunc(maps.Values(entries), compareEntry))
	return x
}

// setHost changes what all entries share.
func (r *ruleset) setHost(host Host) {
	if host.equal(r.host) {
		return
	}
	r.hostMembers(-1)
	r.host, r.stale = host, true
	r.hostMembers(1)
}

func (r *ruleset) hostMembers(n int32) {
	if !r.sets {
		return
	}
	for set, nets := range map[string][]netip.Prefix{setInside: r.host.Inside, setCIDRs: r.host.ServiceCIDRs} {
		for _, net := range nets {
			for _, half := range netfilter.Halves(net) {
				r.Member(r.set(set), netfilter.Member{Net: half}, n)
			}
		}
	}
}

// change brings members, buckets and chains from the entries that go to those that come,
// which are in r.entries already.
func (r *ruleset) change(gone, come []Entry) {
	for _, e := range gone {
		r.count(e, -1)
	}
	for _, e := range come {
		r.count(e, 1)
	}
}

// count adds n references to what an entry needs beside chains, and notes whether these change.
func (r *ruleset) count(e Entry, n int32) {
	// A node port that is screened is hidden by exact frontends.
	if nodePort(e.Frontend.Addr) && e.screened() {
		r.stale = true
		r.closed += int(n)
	}
	r.stale = r.stale || r.depends(e)
	if e.Action == Drop || e.DropOutside || e.Sources != nil {
		r.screens += int(n)
	}
	if e.Action == Redirect && e.Frontend.Protocol == lb.UDP {
		b := netfilter.BucketOf("nat", r.chain(chainUDP), e.Frontend.Addr.Addr(), buckets)
		if to := r.toPort(e); n > 0 {
			r.AddToBucket(b, to)
		} else {
			r.DeleteFromBucket(b, to)
		}
	}
	if r.sets {
		e.members(func(set string, m netfilter.Member) { r.Member(r.set(set), m, n) })
	}
}

// depends reports whether chains depend on an entry.
func (r *ruleset) depends(e Entry) bool {
	return !r.sets || e.Frontend.Protocol == lb.SCTP || e.numberedAsProxy(r.host) ||
		r.closed > 0 && !nodePort(e.Frontend.Addr) && r.nodePortOf(e.Frontend).screened()
}

// nodePortOf returns the node port with the number of a frontend; the zero Entry if none has.
func (r *ruleset) nodePortOf(f lb.Frontend) Entry {
	f.Addr = netip.AddrPortFrom(netfilter.Unspecified(r.ipv6), f.Addr.Port())
	return r.entries[f]
}

// render brings the chains that are rendered whole up to date.
func (r *ruleset) render() {
	if !r.stale {
		return
	}
	v := view{ruleset: r, chains: make(map[netfilter.Place][]string)}
	for _, e := range r.entries {
		if r.depends(e) {
			v.entries = append(v.entries, e)
		}
	}
	slices.SortFunc(v.entries, compareEntry)
	v.render()
	for at, rules := range v.chains {
		r.SetChain(at, rules)
	}
	r.stale = false
}

// screened reports whether an entry makes some clients get no service.
func (e Entry) screened() bool { return e.Action == Refuse || e.Action == Drop || e.DropOutside }

// numberedAsProxy reports whether a frontend has its proxy port's own number.
func (e Entry) numberedAsProxy(host Host) bool {
	return e.Action == Redirect && e.Frontend.Addr.Port() == e.proxyPort(host)
}

// proxyPort returns where an entry is redirected to.
func (e Entry) proxyPort(host Host) uint16 {
	if e.Frontend.Protocol == lb.TCP {
		return host.TCPPort
	}
	return e.Port
}

func (h Host) equal(o Host) bool {
	return h.TCPPort == o.TCPPort && slices.Equal(h.Local, o.Local) && slices.Equal(h.Inside, o.Inside) &&
		slices.Equal(h.ServiceCIDRs, o.ServiceCIDRs)
}

// part is the part of an update in one family, checked, with addresses as packets carry
// them.
type part struct {
	host Host
	gone []lb.Frontend
	come []Entry // some of them twice
}

// family returns the part of an update in one address family.
func (u Update) family(ipv6 bool) (p part, err error) {
	p.host.TCPPort = u.Host.TCPPort
	for _, addr := range u.Host.Local {
		if addr.Is6() == ipv6 && len(p.host.Local) == 0 {
			p.host.Local = []netip.Addr{addr}
		}
	}
	if p.host.Inside, err = prefixesOf(u.Host.Inside, ipv6); err != nil {
		return part{}, fmt.Errorf("update prefixes of pods: %w", err)
	}
	if p.host.ServiceCIDRs, err = prefixesOf(u.Host.ServiceCIDRs, ipv6); err != nil {
		return part{}, fmt.Errorf("update ServiceCIDRs: %w", err)
	}
	for _, e := range u.Remove {
		if f, ours := ofFamily(e.Frontend, ipv6); ours {
			p.gone = append(p.gone, f)
		}
	}
	for _, e := range u.Add {
		var ours bool
		if e.Frontend, ours = ofFamily(e.Frontend, ipv6); !ours {
			continue
		}
		e, err := e.checked(ipv6, p.host)
		if err != nil {
			return part{}, contradiction(e.Frontend, err)
		}
		if p.come == nil {
			p.come = make([]Entry, 0, len(u.Add))
		}
		p.come = append(p.come, e)
	}
	return p, nil
}

// byFrontend returns entries by their frontends.
func byFrontend(list []Entry) map[lb.Frontend]Entry {
	entries := make(map[lb.Frontend]Entry, len(list))
	for _, e := range list {
		entries[e.Frontend] = e
	}
	return entries
}

func contradiction(f lb.Frontend, err error) error {
	return fmt.Errorf("update frontend %s: %w", f, err)
}

// conflict says how two entries for one frontend differ.
func (e Entry) conflict(o Entry) error {
	switch {
	case e.Action != o.Action:
		return fmt.Errorf("both %s and %s", e.Action, o.Action)
	case e.Port != o.Port:
		return fmt.Errorf("two proxy ports, %d and %d", e.Port, o.Port)
	}
	return errors.New("added twice for different clients")
}

// ofFamily returns a frontend as packets carry it, and whether it is of a family.
func ofFamily(f lb.Frontend, ipv6 bool) (lb.Frontend, bool) {
	f.Addr = netip.AddrPortFrom(f.Addr.Addr().Unmap(), f.Addr.Port())
	return f, f.Addr.Addr().Is6() == ipv6
}

// checked returns an entry of a family as packets are matched.
func (e Entry) checked(ipv6 bool, host Host) (Entry, error) {
	f, redirected := e.Frontend, e.Action == Redirect
	switch {
	case f.Protocol < lb.TCP || f.Protocol > lb.SCTP || !f.Addr.IsValid() || f.Addr.Port() == 0:
		return e, errors.New("no protocol, address or port")
	case e.Action > Drop:
		return e, errors.New("no action")
	case redirected && nodePort(f.Addr):
		return e, errors.New("a node port is listened on, not redirected")
	case redirected && f.Protocol == lb.TCP && e.Port != 0 && e.Port != host.TCPPort:
		return e, errors.New("only UDP and SCTP have ports of their own")
	case redirected && e.proxyPort(host) == 0:
		return e, errors.New("no proxy port")
	case e.ClusterIP && nodePort(f.Addr):
		return e, errors.New("a node port is no cluster IP")
	case e.Sources != nil && nodePort(f.Addr):
		return e, errors.New("a node port cannot be restricted to sources")
	}
	if !redirected || f.Protocol == lb.TCP {
		e.Port = 0
	}
	if e.Sources == nil {
		return e, nil
	}
	sources, err := prefixesOf(e.Sources, ipv6)
	if e.Sources = sources; len(sources) > 0 && sources[0].Bits() == 0 {
		e.Sources = nil
	}
	return e, err
}

// prefixesOf returns the prefixes of a family as packets are matched, sorted, without those that
// others contain, and never nil.
func prefixesOf(in []netip.Prefix, ipv6 bool) ([]netip.Prefix, error) {
	out := []netip.Prefix{}
	for _, x := range in {
		if !x.IsValid() {
			return nil, fmt.Errorf("prefix %s is not valid", x)
		}
		if x.Addr().Is4In6() && x.Bits() >= 96 {
			x = netip.PrefixFrom(x.Addr().Unmap(), x.Bits()-96)
		}
		if x.Addr().Is6() != ipv6 {
			continue
		}
		if x.Bits() == 0 {
			return []netip.Prefix{x.Masked()}, nil
		}
		out = append(out, x.Masked())
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	some := out[:0]
	for _, x := range out { // what contains others comes before them
		if n := len(some); n == 0 || !some[n-1].Contains(x.Addr()) {
			some = append(some, x)
		}
	}
	return some, nil
}

// nodePort reports whether a frontend is a port of every address of the node.
func nodePort(addr netip.AddrPort) bool { return addr.Addr().IsUnspecified() }

// compareEntry orders node ports last, since the first rule that matches wins.
func compareEntry(a, b Entry) int {
	last := func(e Entry) int {
		if nodePort(e.Frontend.Addr) {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.Frontend.Protocol, b.Frontend.Protocol), cmp.Compare(last(a), last(b)),
		a.Frontend.Addr.Compare(b.Frontend.Addr))
}
