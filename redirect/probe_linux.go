package redirect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/coreos/go-iptables/iptables"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// find looks for iptables and asks for its version, which takes some milliseconds.
func (k *kernel) find(ctx context.Context, t *IPTables) error {
	if k.ipt != nil {
		return nil
	}
	family := iptables.ProtocolIPv4
	if t.IPv6 {
		family = iptables.ProtocolIPv6
	}
	s, err := t.shape()
	if err != nil {
		return err
	}
	path, version, nft, err := netfilter.Find(ctx, cmp.Or(t.Command, netfilter.Program(t.IPv6)))
	if err != nil {
		return err
	}
	ipt, err := iptables.New(iptables.IPFamily(family), iptables.Path(path), iptables.Timeout(netfilter.LockWait))
	if err != nil {
		return fmt.Errorf("use %s: %w", path, err)
	}
	k.path, k.nft, k.facts = path, nft, Facts{Version: version}
	k.shape, k.ipt = s, ipt
	return nil
}

// probe finds iptables and tries what the kernel takes, which takes some tenths of a
// second with nf_tables.
func (k *kernel) probe(ctx context.Context, t *IPTables) (Facts, error) {
	if k.probed {
		return k.facts, nil
	}
	if err := k.find(ctx, t); err != nil {
		return Facts{}, err
	}
	s, facts := k.shape, k.facts
	if s.sets = !t.NoIPSet; s.sets {
		err := k.try(ctx, s)
		if errors.Is(err, fs.ErrPermission) || ctx.Err() != nil {
			return Facts{}, err
		} else if err != nil {
			s.sets = false
			facts.Warnings = append(facts.Warnings, fmt.Sprintf("sets cannot be used, so each frontend is a rule: %v", err))
		}
	}
	if !s.sets {
		if err := k.try(ctx, s); err != nil {
			return Facts{}, err
		}
	}
	facts.IPSet = s.sets
	facts.Warnings = append(facts.Warnings, k.otherBackend(ctx, netfilter.Program(t.IPv6))...)
	k.shape, k.facts, k.probed = s, facts, true
	return facts, nil
}

// shape returns how rules are written, as far as it was configured.
func (t *IPTables) shape() (shape, error) {
	s := shape{ipv6: t.IPv6, prefix: chainPrefix}
	if !t.BindAddr.IsValid() || t.BindAddr.IsUnspecified() {
		return s, nil
	}
	s.bind = t.BindAddr.Unmap()
	switch {
	case s.bind.IsLoopback():
		return shape{}, fmt.Errorf("steer to bind address %s: cannot proxy on localhost: use an address of the node, or none", t.BindAddr)
	case s.bind.Is6() != t.IPv6:
		return shape{}, fmt.Errorf("steer to bind address %s: it is of the other address family", t.BindAddr)
	}
	return s, nil
}

// try has the kernel take one of each kind of rule, in chains that nothing leads
// to, and removes them.
func (k *kernel) try(ctx context.Context, s shape) (reterr error) {
	s.prefix = probePrefix
	addr := netip.MustParseAddr("192.0.2.1") // documentation addresses (RFC 5737, RFC 3849)
	if s.ipv6 {
		addr = netip.MustParseAddr("2001:db8::1")
	}
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }
	some := func(port uint16) []lb.Frontend {
		return []lb.Frontend{{Protocol: lb.TCP, Addr: at(port)}, {Protocol: lb.UDP, Addr: netip.AddrPortFrom(unspecified(s.ipv6), port)}}
	}
	host := []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}
	plan := Plan{
		TCPPort:     1,
		TCP:         []netip.AddrPort{at(1)},
		Ported:      []Ported{{lb.Frontend{Protocol: lb.UDP, Addr: at(1)}, 1}},
		Accept:      some(2),
		Refuse:      append(some(3), lb.Frontend{Protocol: lb.UDP, Addr: at(3)}),
		Drop:        some(4),
		DropOutside: some(5),
		Inside:      host,
		Restricted:  []Restricted{{lb.Frontend{Protocol: lb.TCP, Addr: at(1)}, host}},
	}
	if s.sets {
		defer func() { reterr = errors.Join(reterr, s.destroySets(ctx)) }()
		if err := s.createSets(); err != nil {
			return err
		}
	}
	err := k.restore(ctx, s, s.render(plan))
	// One table may have been written and the other not.
	if err2 := k.restore(ctx, s, s.unrender(plan)); err == nil {
		err = err2
	}
	return err
}

// unrender returns the input of iptables-restore that removes the chains of a plan, to
// which no jump may lead.
func (s shape) unrender(p Plan) []byte {
	rules := parseRules(s.render(p))
	var out []byte
	for _, t := range tables {
		out = append(out, removal(t.name, rules.chains(t.name, nil))...)
	}
	return out
}

// otherBackend warns of rules in the backend that we do not write to: the kernel
// asks both, and rules that nobody sees are hard to find.
func (k *kernel) otherBackend(ctx context.Context, family string) []string {
	other := family + "-nft"
	if k.nft {
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
	return []string{fmt.Sprintf("%s has %d rules too, which the kernel obeys beside those of %s: see %s-save", other, n, k.path, other)}
}
