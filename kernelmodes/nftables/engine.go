package nftables

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// Engine forwards Services by nf_tables in one address family. The zero value is usable: IPv4.
// Its methods are called by one goroutine, except Stats and Renew, and work in the network
// namespace of the calling thread. Set the fields before the first call. There is nothing to
// close.
type Engine struct {
	// IPv6 chooses the address family.
	IPv6 bool

	// Masquerade is as everywhere; policy Local of external addresses is not for the traffic
	// of pods.
	kernelmodes.Masquerade

	// Ask has a process choose endpoints; by default the kernel does. Such an engine has a table of its own, so that
	// there may be both.
	Ask Ask

	// Lifetime is how long rules match without this process, in whole milliseconds. 0: for ever.
	Lifetime time.Duration

	kernel
}

// Ask says how a process is asked about each new flow to a Service: its first packet goes to a queue (see
// internal/netfilter/nfqueue), and comes out with [Engine.Number] of the endpoint in its mark. With a mark of no
// endpoint, or if no process listens, it goes the way that it would without.
type Ask struct {
	// First is the first one of Count queues, of which each flow uses one. Count 0: the kernel chooses.
	First, Count uint16

	// Mask is the bits of a mark that the number is in: consecutive ones, but those of Masquerade. They
	// are cleared when the destination is known.
	Mask uint32

	// Target uses the target NFQUEUE of iptables, for kernels whose nf_tables has no queues.
	Target bool

	// Events has conntrack make fewer events about connections of TCP to Services of which it does not matter what is
	// in flight (lb.Policies.CountsInFlight, with Defaults where they request nothing): none about changes of state but
	// the first answer and the end of the entry. False is for kernels whose nf_tables does not know it.
	Events   bool
	Defaults lb.Policies

	// Share is how many of the numbers the endpoints of one Service may have: there are 65,535 in sixteen bits, and one
	// that would have more is to leave some to others. 0: all.
	Share shares.Percent
}

// Number returns the bits of the mark that send a flow to an endpoint, 0 if it has none. An endpoint has the same ones
// for as long as it is one of a Service, also in the process that takes over. Any goroutine may call it.
func (e *Engine) Number(endpoint netip.AddrPort) uint32 { return e.number(endpoint) }

// Unnumbered returns how many endpoints have no number since there are too few, or their Service has its share: the
// kernel chooses where they are chosen. It is by the Service that has brought them first, with all of its ports, and
// that of the last Sync; nil: there are none.
func (e *Engine) Unnumbered() map[lb.Name]int { return e.without() }

// Probe checks that this host can forward Services: that the kernel takes each kind of rule and
// set, in a transaction that leaves nothing. The first call that has no error does the work and
// later ones, Sync among them, do nothing.
//
// The error wraps fs.ErrPermission if we may not use nf_tables, and errors.ErrUnsupported on other
// systems than Linux.
func (e *Engine) Probe(ctx context.Context) error { return e.probe(ctx) }

// Sync makes the kernel forward the Services of the engine's family as d says. It deletes no
// conntrack entries: the caller does, by flows.Stale, so that flows of UDP and SCTP leave a
// backend that they must leave. The first d is whole, and so is the one after an error. For these, and after Verify
// returned false for an empty d too, Sync replaces the whole table; for no Services it removes what an earlier process
// has left. The Services are kept, and must not be written to.
//
// An address with the unspecified IP is a node port, on every address of the node but
// loopback; one of kind lb.NodePort with an exact IP is a node port there, and none if the IP
// is a loopback one. No address may be in two Services.
//
// On an error the table is that of before or the one requested.
func (e *Engine) Sync(ctx context.Context, d lb.Delta, node lb.Node) error {
	return e.sync(ctx, &d, node)
}

// Verify reports whether our table holds what the last Sync wrote and nothing else; if not, call
// Sync. It costs one netlink message if no program has written to nf_tables since the last Verify,
// ours in Renew and other tables included.
func (e *Engine) Verify(ctx context.Context) (bool, error) { return e.verify(ctx) }

// Renew makes rules last for another Lifetime, if there are any. Any goroutine may call it.
func (e *Engine) Renew() error { return e.renew() }

// Leftover reports whether an earlier process has left Services here. It costs some milliseconds.
func (e *Engine) Leftover(ctx context.Context) (bool, error) { return e.leftover(ctx) }

// Clients returns which backend each client of a Service with affinity was sent to last,
// the longest ago first. now is the time on the clock of lb.Client.LastUsed. The Service is
// one of the last Sync that had no error; before the first, one that an earlier process may have left.
func (e *Engine) Clients(_ context.Context, s *lb.Service, now int64) ([]lb.Client, error) {
	return e.clients(s, now)
}

// Remember makes the kernel send clients of a Service with affinity to the backends that
// they had on another path. The Service is one of the last Sync that had no error, and clients
// are in the order of Clients. To the kernel they have come now. Clients of backends that the
// Service has not are left out, and so are the first ones of a backend that has more than 65,535.
func (e *Engine) Remember(_ context.Context, s *lb.Service, clients []lb.Client) error {
	return e.remember(s, clients)
}

// Explain says which sets, maps and chains decide about the first packet to an address of a Service on a node, in the
// order in which it meets them, as far as that is known without the kernel: not which of their maps endpoints are in,
// nor whose turn it is. It is pure. The Service and the address are of the engine's family. None: not on this system.
func (e *Engine) Explain(s *lb.Service, a lb.Address, node lb.Node) []string {
	return e.explain(s, a, node)
}

// Stats is what an engine has done since it was made, and what is there.
type Stats struct {
	Transactions uint64 // of netlink
	Failures     uint64 // of them, those that the kernel refused
	Rules        int
	Elements     int // of sets and maps, but those of clients with affinity

	// Numbered are the endpoints that have a number, and Unnumbered those that have none, with Ask.
	Numbered, Unnumbered int
}

// Add adds what another engine has done.
func (s *Stats) Add(other Stats) {
	s.Transactions += other.Transactions
	s.Failures += other.Failures
	s.Rules += other.Rules
	s.Elements += other.Elements
	s.Numbered += other.Numbered
	s.Unnumbered += other.Unnumbered
}

// Stats may be called by any goroutine.
func (e *Engine) Stats() Stats { return e.stats() }

// Cleanup removes every trace of any engine of this package from the network namespace
// of the calling thread, of both address families. Established connections go on. It goes on
// after an error and returns all of them. If nothing is there it does nothing. It is not to run
// while an engine is in use.
func Cleanup(ctx context.Context) error { return cleanup(ctx) }
