package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/redirect"
)

// steerer steers one address family, by either packet filter (redirect.NFTables, redirect.IPTables).
type steerer interface {
	Leftover(context.Context) redirect.Leftover
	Sync(context.Context, redirect.Update) error
	Verify(context.Context) (bool, error)
	Stats() redirect.Stats
}

// lease is what keeps rules in force (netfilter.Lease, redirect.NFTables, nftables.Engine).
type lease interface{ Renew() error }

// steeredFamily is an address family that is steered.
type steeredFamily struct {
	ipv6     bool
	steerer  steerer
	iptables *redirect.IPTables              // the same, or what finds out about iptables for kernel modes
	engine   atomic.Pointer[nftables.Engine] // nil: this host cannot forward by nftables, or that is not known yet
	queue    atomic.Pointer[nftables.Engine] // the same for data path queue
}

// forwarded is what the family's engines for nftables have done.
func (t *steeredFamily) forwarded() (s nftables.Stats, there bool) {
	for _, e := range []*nftables.Engine{t.engine.Load(), t.queue.Load()} {
		if e != nil {
			s.Add(e.Stats())
			there = true
		}
	}
	return s, there
}

// steerer makes what steers a family by the packet filter that has been chosen.
func (s *steering) steerer(ipv6 bool) *steeredFamily {
	t := s.iptables[ipv6]
	if t == nil {
		t = s.newIPTables(ipv6)
	}
	f := &steeredFamily{ipv6: ipv6, steerer: t, iptables: t}
	if s.filter.By == config.NFTables {
		n := s.nftables[ipv6]
		f.steerer = n
		s.leases = append(s.leases, n)
	}
	return f
}

func (s *steering) newIPTables(ipv6 bool) *redirect.IPTables {
	return &redirect.IPTables{IPv6: ipv6, BindAddr: s.bindAddress(ipv6),
		Lease: redirect.NewLease(ipv6, s.config.Kernel.RulesLifetime)}
}

// PacketFilter says what steers.
type PacketFilter struct {
	By        string `json:"packetFilter"` // config.NFTables or config.IPTables; empty: nothing is steered
	Requested bool   `json:"requested"`    // by --packet-filter, not chosen
}

// choose chooses the packet filter: that of --packet-filter, or iptables in its own mode, or nftables where each family
// that this host has can be steered by it, and else iptables.
func (s *steering) choose(ctx context.Context) error {
	requested := s.config.DataPath.PacketFilter
	s.filter = PacketFilter{By: requested, Requested: requested != config.AutoFilter}
	if requested == config.IPTables {
		return nil
	}
	// Only a rule of iptables lets node ports and health checks through a firewall of iptables that drops by default.
	if requested == config.AutoFilter && s.config.DataPath.Mode == config.ModeIPTables && s.tryIPTables(ctx) {
		s.filter.By = config.IPTables
		return nil
	}
	err := s.tryNFTables(ctx)
	switch {
	case err == nil:
		s.filter.By = config.NFTables
	case errors.Is(err, fs.ErrPermission): // iptables may do no more
		return err
	case s.filter.Requested:
		return fmt.Errorf("--packet-filter %s: %w: give iptables or auto", requested, err)
	default:
		s.filter.By = config.IPTables
		s.log.Info("nftables cannot steer on this host, iptables is tried", zap.Error(err))
	}
	return nil
}

// tryIPTables reports whether iptables, with sets, can steer all families that the kernel has.
func (s *steering) tryIPTables(ctx context.Context) bool {
	for _, ipv6 := range []bool{false, true} {
		t := s.newIPTables(ipv6)
		s.iptables[ipv6] = t
		if facts, err := t.Probe(ctx); !facts.IPSet && (err == nil || !ipv6 || hasIPv6()) {
			s.log.Info("iptables cannot steer with sets on this host", zap.Bool("ipv6", ipv6), zap.Error(err))
			return false
		}
	}
	return true
}

// tryNFTables finds out whether nftables can steer all families that the kernel has.
func (s *steering) tryNFTables(ctx context.Context) error {
	for _, ipv6 := range []bool{false, true} {
		t := &redirect.NFTables{IPv6: ipv6, BindAddr: s.bindAddress(ipv6), Lifetime: s.config.Kernel.RulesLifetime}
		s.nftables[ipv6] = t
		if err := t.Probe(ctx); err != nil && (!ipv6 || hasIPv6()) {
			return err
		}
	}
	return nil
}

// hasIPv6 reports whether the kernel has IPv6, as far as that can be seen.
func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return !errors.Is(err, fs.ErrNotExist)
}

// watch has rules verified when another program has changed any, until ctx ends. Those of iptables' legacy backend, and
// sets, are verified from time to time only.
func (s *steering) watch(ctx context.Context, suspect func()) {
	if s.filter.By == "" {
		return
	}
	m, err := nft.OpenMonitor()
	if err == nil {
		suspect() // of what has happened so far
		err = m.Run(ctx, suspect)
	}
	if err != nil {
		s.log.Info("cannot watch rules: changes by others are found by verification", zap.Error(err))
	}
}
