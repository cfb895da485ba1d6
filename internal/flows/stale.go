package flows

import (
	"errors"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// retryFor is for how long entries are looked for again after an error: a client on Linux asks for 127 s
// (tcp_syn_retries in tcp(7)), and conntrack keeps what is not answered for 120 s. A kernel without
// nf_conntrack_netlink is not asked for ever.
const retryFor = 2 * time.Minute

// Stale deletes the entries of conntrack that keep packets where a new flow would not go: netfilter looks at rules only
// for the first packet of a flow. All data paths and both families have one of it; only the counter is for any
// goroutine. The zero value is ready.
type Stale struct {
	Log *zap.Logger
	// Observe is passed how long it took to look through a family. May be nil.
	Observe func(ipv6 bool, took time.Duration)

	families [2]family
	failing  bool
}

// family is what is to be looked at in one.
type family struct {
	of    map[lb.Protocol]frontends
	added map[lb.Frontend]bool // of TCP and SCTP: they were not served before
	until time.Time            // when it is given up; zero: nothing is to be looked at
	n     atomic.Uint64        // deleted
}

func (s *Stale) family(ipv6 bool) *family {
	if ipv6 {
		return &s.families[1]
	}
	return &s.families[0]
}

// Change notes that a frontend has another place. Of TCP only endpoints count that leave a frontend which stays in the
// kernel. unknown: it is not known what served the frontend before, so that was may lack some of it.
func (s *Stale) Change(f lb.Frontend, was, now Place, unknown bool) {
	if f.Protocol == lb.TCP && (was.Kind != Kernel || now.Kind != Kernel || has(now.Endpoints, was.Endpoints)) {
		return
	}
	x := s.family(f.Addr.Addr().Is6())
	waits := x.of[f.Protocol][f.Addr] != nil // since an error
	if !waits && !unknown && was.keeps(now) {
		return
	}
	x.note()
	of := x.of[f.Protocol]
	if !waits {
		of[f.Addr] = new(frontend)
	}
	of[f.Addr].now = now
	for _, a := range was.Endpoints {
		if !slices.Contains(of[f.Addr].had, a) {
			of[f.Addr].had = append(of[f.Addr].had, a)
		}
	}
}

// Add notes that frontends of TCP and SCTP are served now, and were not before. A client that has asked before has an
// entry that leads nowhere, for as long as it goes on asking.
func (s *Stale) Add(list []lb.Frontend) {
	for _, f := range list {
		x := s.family(f.Addr.Addr().Is6())
		x.note()
		x.added[f] = true
	}
}

// note makes Reconcile look through a family.
func (x *family) note() {
	if x.until.IsZero() {
		x.of = map[lb.Protocol]frontends{lb.TCP: {}, lb.UDP: {}, lb.SCTP: {}}
		x.added = make(map[lb.Frontend]bool)
		x.until = time.Now().Add(retryFor)
	}
}

// Reconcile deletes what is stale, when rules and sockets are as was noted. It reports whether it has to be called
// again, since something went wrong, which it logs once.
func (s *Stale) Reconcile(n *Node, known func(lb.Frontend) bool) (again bool) {
	var errs []error
	for i := range s.families {
		x := &s.families[i]
		if x.until.IsZero() {
			continue
		}
		start, ipv6 := time.Now(), i == 1
		deleted, err := x.reconcile(ipv6, n, known)
		x.n.Add(deleted)
		if errs = append(errs, err); s.Observe != nil {
			s.Observe(ipv6, time.Since(start))
		}
		if err == nil || time.Now().After(x.until) {
			x.of, x.added, x.until = nil, nil, time.Time{}
		}
		again = again || !x.until.IsZero()
	}
	err := errors.Join(errs...)
	if err != nil && !s.failing {
		s.Log.Warn("cannot delete stale conntrack entries, retrying", zap.Error(err))
	}
	s.failing = err != nil
	return again
}

func (x *family) reconcile(ipv6 bool, n *Node, known func(lb.Frontend) bool) (deleted uint64, err error) {
	for protocol, of := range x.of {
		if len(of) == 0 {
			continue
		}
		exact := func(a netip.AddrPort) bool { return known(lb.Frontend{Protocol: protocol, Addr: a}) }
		w := conntrack.Which{Protocol: protocol, IPv6: ipv6, Frontends: maps.Keys(of),
			Answers: protocol == lb.UDP && of.reverses()}
		if protocol == lb.TCP {
			w.Without = conntrack.SeenReply
		}
		some, err2 := conntrack.DeleteFlows(w, of.decide(protocol, exact, n))
		deleted, err = deleted+some, errors.Join(err, err2)
	}
	added := make(map[lb.Protocol][]netip.AddrPort)
	for f := range x.added {
		added[f.Protocol] = append(added[f.Protocol], f.Addr)
	}
	some, err2 := conntrack.DeleteUnreplied(ipv6, added[lb.TCP], added[lb.SCTP])
	return deleted + some, errors.Join(err, err2)
}

// Deleted returns how many entries of a family were deleted. Any goroutine may call it.
func (s *Stale) Deleted(ipv6 bool) uint64 { return s.family(ipv6).n.Load() }

// DeleteUntranslated deletes the entries of UDP frontends that have no translation of conntrack's: those of sockets of
// this node, and those of ipvs.
func DeleteUntranslated(ipv6 bool, frontends iter.Seq[netip.AddrPort], is func(netip.AddrPort) bool) error {
	udp := conntrack.Which{Protocol: lb.UDP, IPv6: ipv6, Frontends: frontends, Answers: true}
	_, err := conntrack.DeleteFlows(udp, func(e *Entry) bool {
		return is(e.Src) || is(e.Dst) && !e.Translated()
	})
	return err
}

// DeleteReset deletes the entries of connections and associations that rules had redirected to a socket of this node,
// and that it has reset. The kernel keeps such an entry for ten seconds. A client that takes its port again meanwhile
// would follow the entry to that socket, which may be gone (tcp_packet of nf_conntrack_proto_tcp.c).
func DeleteReset(p lb.Protocol, ipv6 bool, frontends iter.Seq[netip.AddrPort]) error {
	local, err := netfilter.LocalAddrs()
	if err != nil {
		return err
	}
	reset := conntrack.TCPClose
	if p == lb.SCTP {
		reset = conntrack.SCTPClosed
	}
	_, err = conntrack.DeleteFlows(conntrack.Which{Protocol: p, IPv6: ipv6, Frontends: frontends}, func(e *Entry) bool {
		return e.State == reset && e.Translated() && local[e.Replies.Addr()]
	})
	return err
}

// DeleteRedirected deletes the entries of UDP frontends whose packets rules have redirected to a port of this node.
func DeleteRedirected(ipv6 bool, frontends map[netip.AddrPort]bool) error {
	local, err := netfilter.LocalAddrs()
	if err != nil {
		return err
	}
	udp := conntrack.Which{Protocol: lb.UDP, IPv6: ipv6, Frontends: maps.Keys(frontends)}
	_, err = conntrack.DeleteFlows(udp, func(e *Entry) bool {
		at := e.Replies.Addr()
		return frontends[e.Dst] && e.Replies != e.Dst && (local[at] || at.IsLoopback())
	})
	return err
}
