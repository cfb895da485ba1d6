package addresses

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
)

// guardTable has the rules that keep clients from sockets on all addresses of the host.
const guardTable = "sluice-addresses"

// guard keeps programs of the host that listen on all addresses from being reached at service addresses. The zero guard
// does nothing.
type guard struct {
	table *nft.Table // nil: the host cannot do that, or was not asked
	held  map[netip.Addr]bool
}

// open finds out whether the host can do that.
func (g *guard) open(ipv6 bool) error {
	t := &nft.Table{Name: guardTable, IPv6: ipv6}
	t.AddSet(nft.Set{Name: "held", Key: []nft.Field{nft.Address}})
	rule := func() *nft.Builder { return nft.NewRule(ipv6) }
	held := func(b *nft.Builder) *nft.Builder { return b.In("held", nft.Destination).Wildcard() }
	t.SetChain("input", &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN}, []nft.Rule{
		held(rule().Protocol(unix.IPPROTO_TCP).SYN()).Reject(true).Rule(""),
		held(rule().Protocol(unix.IPPROTO_UDP)).Reject(false).Rule(""),
	})
	if err := t.Try(); err != nil {
		return err
	}
	g.table, g.held = t, make(map[netip.Addr]bool)
	return nil
}

// sync guards the addresses that are held, and nothing else.
func (g *guard) sync(held map[netip.Addr]bool) error {
	if g.table == nil {
		return nil
	}
	for ip := range held {
		if !g.held[ip] {
			g.table.Add("held", nft.Element{Key: nft.Key(ip)}, 1)
			g.held[ip] = true
		}
	}
	for ip := range g.held {
		if !held[ip] {
			g.table.Add("held", nft.Element{Key: nft.Key(ip)}, -1)
			delete(g.held, ip)
		}
	}
	if len(held) > 0 {
		return g.table.Write()
	}
	g.table.Forget() // the next Write makes all of it
	_, err := nft.Remove(g.table.IPv6, guardTable)
	return err
}

// removeGuard removes what any process has left.
func removeGuard() error {
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		_, err := nft.Remove(ipv6, guardTable)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
