package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/metrics"
	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/redirect/addresses"
)

// steering is how traffic of each address family gets to the data path, or to a kernel mode.
type steering struct {
	config *config.Config
	log    *zap.Logger
	mode   agent.Path // of Services that request none
	filter PacketFilter

	nftables   map[bool]*redirect.NFTables // by whether it is IPv6; probed when the packet filter was chosen
	iptables   map[bool]*redirect.IPTables // so; none where that was not asked
	ipv4, ipv6 agent.Family
	served     []metrics.Family
	steered    []*steeredFamily
	queues     *queues
	stale      flows.Stale
	leases     []lease           // of rules
	before     redirect.Leftover // where rules that were there at the start lead
	unprobed   []*steeredFamily  // families whose rules were there at the start, until there is time to probe
	locked     []*steeredFamily  // families whose kernel modes wait for the xtables lock
}

func newSteering(c *config.Config, q *queues, log *zap.Logger) *steering {
	mode, _ := agent.ParsePath(c.DataPath.Mode)
	return &steering{config: c, log: log, mode: mode, nftables: make(map[bool]*redirect.NFTables),
		iptables: make(map[bool]*redirect.IPTables),
		queues:   q, stale: flows.Stale{Log: log},
		before: redirect.Leftover{Ported: make(map[lb.Frontend]uint16)}}
}

// open finds out how each address family can be steered. IPv4 is required; IPv6 is left
// alone, with a warning, where the host has none. taking: a running process steers them.
func (s *steering) open(ctx context.Context, taking bool) (err error) {
	if s.config.DataPath.Mode == config.ModeWinUserspace {
		return s.openAddresses()
	}
	if err := s.choose(ctx); err != nil {
		return err
	}
	s.ipv4, err = s.family(ctx, "IPv4", s.steerer(false), taking)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return fmt.Errorf("--proxy-mode %s: %w: give winuserspace", s.config.DataPath.Mode, err)
	case err != nil:
		return err
	}
	if s.ipv6, err = s.family(ctx, "IPv6", s.steerer(true), taking); err != nil {
		s.log.Warn("IPv6 Services are not served", zap.Error(err))
	}
	return nil
}

// family finds out how one family can be steered by t.
func (s *steering) family(ctx context.Context, name string, t *steeredFamily, taking bool) (agent.Family, error) {
	f := agent.Family{Steer: steeringBy(t.steerer), Bind: s.bindAddress(t.ipv6)}
	left := t.steerer.Leftover(ctx)
	if s.before.TCPPort == 0 {
		s.before.TCPPort = left.TCPPort
	}
	maps.Copy(s.before.Ported, left.Ported)
	if !taking && (left.TCPPort != 0 || left.Table && s.before.TCPPort != 0) {
		s.unprobed = append(s.unprobed, t) // clients that are steered already, be it in IPv4 only, do not wait for that
	} else if err := s.probe(ctx, t, &f); err != nil {
		return agent.Family{}, err
	}
	s.steered = append(s.steered, t)
	s.served = append(s.served, metrics.Family{Name: name, NFTables: s.filter.By == config.NFTables,
		Engine: t.forwarded, Stats: t.steerer.Stats, Stale: func() uint64 { return s.stale.Deleted(t.ipv6) }})
	return f, nil
}

func steeringBy(t steerer) *agent.Steering { return &agent.Steering{Sync: t.Sync, Verify: t.Verify} }

// bindAddress is where proxy ports of a family listen.
func (s *steering) bindAddress(ipv6 bool) netip.Addr {
	switch addr := s.config.DataPath.BindAddress; {
	case addr.Is6() == ipv6:
		return addr
	case ipv6:
		return netip.IPv6Unspecified()
	default:
		return netip.IPv4Unspecified()
	}
}

// probe finds out what rules the host takes, and what can forward in its kernel.
func (s *steering) probe(ctx context.Context, t *steeredFamily, f *agent.Family) error {
	log := s.log.With(zap.Bool("ipv6", t.ipv6), zap.Bool("requested", s.filter.Requested))
	if n, ok := t.steerer.(*redirect.NFTables); ok {
		if err := n.Probe(ctx); err != nil {
			return err
		}
		log.Info("steering by nftables")
	}
	facts, err := t.iptables.Probe(ctx)
	steers := t.steerer == steerer(t.iptables)
	switch {
	case err != nil && steers:
		return err
	case steers:
		log.Info("steering by iptables", zap.String("version", facts.Version), zap.Bool("ipset", facts.IPSet))
	}
	locked := errors.Is(err, netfilter.ErrLocked)
	if facts.IPSet || locked { // where there is no set, there is nothing to renew
		s.leases = append(s.leases, t.iptables.Lease)
	} else if steers {
		log.Warn("no ipset: rules stay in force while no Sluice runs",
			zap.String("hint", "install ipset, or run sluice --cleanup after a stop"))
	}
	s.nftablesEngine(ctx, f, t)
	s.queueEngine(ctx, f, t)
	if !locked {
		err = s.engines(ctx, f, t)
		locked = err != nil
	}
	if locked {
		f.Engines[agent.IPTables], f.No[agent.IPTables], f.No[agent.IPVS] = nil, err, err
		s.locked = append(s.locked, t)
		s.log.Warn("data paths iptables and ipvs wait for the xtables lock", zap.Bool("ipv6", t.ipv6), zap.Error(err))
	}
	for _, path := range []agent.Path{agent.NFTables, agent.Queue} {
		if s.mode == agent.Auto && f.No[path] != nil {
			log.Warn("data path auto has to do without a path", zap.Stringer("path", path), zap.Error(f.No[path]))
		}
	}
	return nil
}

// probeRest is probe of the families that are served by the rules of a process that has
// crashed, and offers each.
func (s *steering) probeRest(ctx context.Context, offer func(ipv6 bool, f agent.Family)) error {
	for ; len(s.unprobed) > 0; s.unprobed = s.unprobed[1:] {
		t := s.unprobed[0]
		f := s.of(t.ipv6)
		if err := s.probe(ctx, t, f); err != nil && (!t.ipv6 || errors.Is(err, netfilter.ErrLocked)) {
			return err
		} else if err != nil {
			s.log.Warn("IPv6 Services are not served", zap.Error(err))
			*f = agent.Family{}
		}
		offer(t.ipv6, *f)
	}
	return nil
}

func (s *steering) of(ipv6 bool) *agent.Family {
	if ipv6 {
		return &s.ipv6
	}
	return &s.ipv4
}

// reconciler returns who deletes stale entries of conntrack, and calls observe (flows.Stale.Observe); nil: nothing is
// steered.
func (s *steering) reconciler(observe func(ipv6 bool, took time.Duration)) agent.Stale {
	if len(s.steered) == 0 {
		return nil
	}
	s.stale.Observe = observe
	return &s.stale
}

// openAddresses is open in mode winuserspace, in which the host holds the service addresses.
func (s *steering) openAddresses() (err error) {
	on := s.config.DataPath.ServiceInterface
	family := func(name string, a *addresses.Set, bind netip.Addr) (agent.Family, error) {
		if err := a.Probe(); err != nil {
			return agent.Family{}, err
		}
		if err := a.Guard(); err != nil {
			s.log.Warn("programs on all addresses are reached at those of Services", zap.String("family", name),
				zap.Error(err))
		}
		s.served = append(s.served, metrics.Family{Name: name})
		return agent.Family{Addresses: &agent.Holding{Sync: a.Sync, Verify: a.Verify, Held: a.Held}, Bind: bind}, nil
	}
	s.ipv4, err = family("IPv4", &addresses.Set{Interface: on}, netip.IPv4Unspecified())
	switch {
	case err != nil && on != "":
		return fmt.Errorf("--service-interface %s: %w: give the name of an interface that this host has", on, err)
	case err != nil:
		return err
	}
	if s.ipv6, err = family("IPv6", &addresses.Set{Interface: on, IPv6: true}, netip.IPv6Unspecified()); err != nil {
		s.log.Warn("IPv6 Services are not served", zap.Error(err))
	}
	return nil
}
