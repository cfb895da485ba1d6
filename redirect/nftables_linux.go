package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/lb"
)

// tableName is the table of nf_tables of each family.
const tableName = "sluice-steering"

// nftKernel is what a steerer by nf_tables knows of its host, and what it wrote.
type nftKernel struct {
	steerer

	probed bool // bind is complete, and the kernel takes the rules
	bind   netip.Addr
	counts nft.Counters
}

func (t *NFTables) probe(ctx context.Context) (err error) {
	if t.probed {
		return nil
	}
	if t.bind, err = target(t.BindAddr, t.IPv6); err != nil {
		return err
	}
	if err := netfilter.Privileged(); err != nil {
		return err
	}
	if release := netfilter.Release(); !netfilter.AtLeast(release, 5, 13) {
		return fmt.Errorf("steer by nftables: %w: it needs Linux 5.13 or later, and this is %s", errors.ErrUnsupported,
			release)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.try(); err != nil {
		return fmt.Errorf("try rules of nftables: %w", err)
	}
	t.probed = true
	return nil
}

// try finds out whether the kernel takes one of each kind of rule and element.
func (t *NFTables) try() error {
	p, err := example(t.IPv6)
	if err != nil {
		return err
	}
	p.host.Local = []netip.Addr{p.host.Inside[0].Addr()}
	table := &nft.Table{Name: "sluice-probe", IPv6: t.IPv6, Lifetime: time.Minute}
	r := newNFTRules(table, t.bind, p.host, byFrontend(p.come))
	r.render()
	err = r.Try()
	if errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("%w: the kernel lacks it, as CONFIG_NFT_NAT, NFT_REDIR, NFT_REJECT, NFT_CT or NFT_FIB", err)
	}
	return err
}

func (t *NFTables) sync(ctx context.Context, u Update) error {
	return t.steerer.sync(ctx, t, t.IPv6, u)
}

// open implements filter.
func (t *NFTables) open(ctx context.Context, host Host, entries map[lb.Frontend]Entry) (rules, error) {
	if err := t.probe(ctx); err != nil {
		return nil, err
	}
	table := &nft.Table{Name: tableName, IPv6: t.IPv6, Lifetime: t.Lifetime, Counters: &t.counts}
	return newNFTRules(table, t.bind, host, entries), nil
}

// read implements filter.
func (t *NFTables) read(ctx context.Context) (Leftover, error) {
	left, err := leftoverTable(t.IPv6)
	if left.Table || err != nil {
		return left, err // the first Sync that made the table has removed the rules of iptables
	}
	rules, err := anySteeringRules(ctx, t.IPv6)
	return leftoverRules(rules, t.IPv6), err
}

func (t *NFTables) leftover(ctx context.Context) Leftover {
	left, _ := t.read(ctx) // Probe returns the reason
	return left
}

// succeed implements filter.
func (t *NFTables) succeed(ctx context.Context) error {
	return retireChains(ctx, t.IPv6)
}

func (t *NFTables) verify(ctx context.Context) (bool, error) {
	if t.rules == nil {
		return false, t.probe(ctx)
	}
	return t.rules.Verify(ctx)
}

func (t *NFTables) renew() error {
	if t.Lifetime == 0 {
		return nil
	}
	return nft.Renew(t.IPv6, tableName, t.Lifetime)
}

func (t *NFTables) stats() Stats {
	c := &t.counts
	return Stats{Writes: c.Transactions.Load(), Failures: c.Failures.Load(),
		Rules: map[string]int{tableName: int(c.Rules.Load())}}
}

// leftoverTable reads where the rules of nf_tables lead.
func leftoverTable(ipv6 bool) (Leftover, error) {
	list, there, err := nft.Elements(ipv6, tableName, mapSteer)
	left := Leftover{Ported: make(map[lb.Frontend]uint16), Table: there}
	for _, e := range list {
		if f, port := steeredTo(e, ipv6); f.Protocol == lb.TCP {
			left.TCPPort = port
		} else {
			left.Ported[f] = port
		}
	}
	return left, err
}

// removeTable removes the table of a family, and reports whether there was one.
func removeTable(ipv6 bool) (there bool, err error) { return nft.Remove(ipv6, tableName) }
