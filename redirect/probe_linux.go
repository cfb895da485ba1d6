package redirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

func (t *IPTables) stats() Stats {
	c := &t.netfilter
	return Stats{Writes: c.Restores.Load(), Failures: c.Failures.Load(), Rules: c.Rules()}
}

// find looks for iptables and asks for its version, which takes some milliseconds.
func (t *IPTables) find(ctx context.Context) error {
	if t.program != nil {
		return nil
	}
	s, err := t.newShape()
	if err != nil {
		return err
	}
	program, err := netfilter.Open(ctx, t.Command, t.IPv6)
	if err != nil {
		return err
	}
	t.program, t.shape, t.facts = program, s, Facts{Version: program.Version}
	return nil
}

// probe finds iptables and tries what the kernel takes, which takes some tenths of a
// second with nf_tables.
func (t *IPTables) probe(ctx context.Context) (Facts, error) {
	if t.probed {
		return t.facts, nil
	}
	if err := t.find(ctx); err != nil {
		return Facts{}, err
	}
	s, facts := t.shape, t.facts
	for s.sets = !t.NoIPSet; ; s.sets = false {
		err := t.try(ctx, s)
		if err == nil {
			break
		}
		if !s.sets || errors.Is(err, fs.ErrPermission) || errors.Is(err, netfilter.ErrLocked) || ctx.Err() != nil {
			return Facts{}, err
		}
		facts.Warnings = []string{fmt.Sprintf("sets cannot be used, so each frontend is a rule, and "+
			"ports that no Service has are not refused: %v", err)}
	}
	if facts.IPSet = s.sets; s.sets {
		s.lease = t.Lease
	}
	facts.Warnings = append(facts.Warnings, t.otherBackend(ctx)...)
	t.shape, t.facts, t.probed = s, facts, true
	return facts, nil
}

// newShape returns how rules are written, as far as it was configured.
func (t *IPTables) newShape() (s shape, err error) {
	s = shape{ipv6: t.IPv6, prefix: chainPrefix}
	s.bind, err = target(t.BindAddr, t.IPv6)
	return s, err
}

// target returns where steered packets are to go; the zero Addr if that is up to the kernel.
func target(bind netip.Addr, ipv6 bool) (netip.Addr, error) {
	switch addr := bind.Unmap(); {
	case !bind.IsValid(), bind.IsUnspecified():
		return netip.Addr{}, nil
	case addr.IsLoopback():
		return netip.Addr{}, fmt.Errorf("steer to bind address %s: cannot proxy on localhost: "+
			"use an address of the node, or none", bind)
	case addr.Is6() != ipv6:
		return netip.Addr{}, fmt.Errorf("steer to bind address %s: it is of the other address family", bind)
	default:
		return addr, nil
	}
}

// try makes the kernel take one of each kind of rule, in chains that nothing leads to,
// and removes them.
func (t *IPTables) try(ctx context.Context, s shape) error {
	s.prefix = probePrefix
	p, err := example(s.ipv6)
	if err != nil {
		return err
	}
	r := newRuleset(s, t.program, nil, p.host, byFrontend(p.come))
	r.render()
	return r.Try(ctx)
}

// example has an entry of each kind.
func example(ipv6 bool) (part, error) {
	addr := netip.MustParseAddr("192.0.2.1") // documentation addresses (RFC 5737, RFC 3849)
	if ipv6 {
		addr = netip.MustParseAddr("2001:db8::1")
	}
	host := []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}
	u := Update{Host: Host{TCPPort: 1, Inside: host, ServiceCIDRs: host}}
	add := func(p lb.Protocol, ip netip.Addr, e Entry) {
		e.Frontend = lb.Frontend{Protocol: p, Addr: netip.AddrPortFrom(ip, uint16(len(u.Add)+1))}
		u.Add = append(u.Add, e)
	}
	add(lb.TCP, addr, Entry{Action: Redirect, Sources: host, ClusterIP: true})
	add(lb.UDP, addr, Entry{Action: Redirect, Port: 1})
	add(lb.UDP, addr, Entry{Action: Refuse})
	for _, e := range []Entry{{Action: Accept}, {Action: Refuse}, {Action: Drop}, {DropOutside: true}} {
		add(lb.TCP, addr, e)
		add(lb.UDP, netfilter.Unspecified(ipv6), e)
	}
	return u.family(ipv6)
}

// otherBackend warns of rules in the backend that we do not write to: the kernel
// reads both, and rules that iptables does not show are hard to find.
func (t *IPTables) otherBackend(ctx context.Context) []string {
	family := netfilter.Program(t.IPv6)
	other := family + "-nft"
	if t.program.NFT {
		other = family + "-legacy"
	}
	out, err := netfilter.SavedBy(ctx, other+"-save")
	if err != nil {
		return []string{fmt.Sprintf("cannot see whether %s has rules too: %v", other, err)}
	}
	n := bytes.Count(out, []byte("\n-A "))
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s has %d rules too, which the kernel obeys beside those of %s: see %s-save", other, n,
		t.program.Path, other)}
}
