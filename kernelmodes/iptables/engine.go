package iptables

import (
	"context"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// Engine forwards Services by iptables in one address family. The zero value is
// usable: IPv4, by the iptables in PATH. Its methods are called by one goroutine,
// except Stats, and work in the network namespace of the calling thread. Set the
// fields before the first call. There is nothing to close.
type Engine struct {
	// IPv6 chooses the address family.
	IPv6 bool

	// Command is the iptables program, a name in PATH or a path; "-restore" and
	// "-save" are appended for those that write and read. Empty means iptables, or
	// ip6tables for IPv6.
	Command string

	// Masquerade is as everywhere; policy Local of external addresses is not for the traffic
	// of pods.
	kernelmodes.Masquerade

	// NoLocalhost refuses connections to node ports by loopback, where rules would
	// otherwise leave them to a socket that may be there
	// (--iptables-localhost-nodeports=false).
	NoLocalhost bool

	// Liberal leaves packets alone that conntrack calls invalid. False drops them
	// when they are forwarded, since they would reach a client from an address it has
	// not sent to, and be answered with a reset. It is for hosts where
	// nf_conntrack_tcp_be_liberal is set.
	Liberal bool

	// Lease is how long rules match without this process. nil: for ever.
	Lease *netfilter.Lease

	kernel
}

// Facts is what Probe found.
type Facts struct {
	// Version is iptables' own, as in "v1.8.9 (nf_tables)".
	Version string

	// RandomFully reports whether masquerading chooses source ports at random, so that two
	// CPUs hardly choose the same at once (MASQUERADE --random-fully).
	RandomFully bool

	// BPF reports whether the match bpf is there, which finds an endpoint that gets itself.
	// Without it those of this node (lb.Backend.Local) are listed.
	BPF bool
}

// Probe checks that this host can forward Services: that there is an iptables, that
// we may use it, and that the kernel takes each kind of rule, in chains that nothing
// leads to and that are removed at once. The first call that has no error does the work and
// later ones, Sync among them, return its result.
//
// The error wraps exec.ErrNotFound if there is no iptables, fs.ErrPermission if we may
// not use it, and errors.ErrUnsupported on other systems than Linux.
func (e *Engine) Probe(ctx context.Context) (Facts, error) { return e.probe(ctx) }

// Sync makes the kernel forward the Services of the engine's family as d says. It deletes no
// conntrack entries: the caller does, by flows.Stale, so that flows of UDP and SCTP leave a
// backend that they must leave. The first d is whole, and so is the one after an error. For these two, and
// for any d after Verify returned false, Sync reads which chains there are and writes everything; for no Services it
// removes what an earlier process has left. The Services are kept, and must not be written to.
//
// An address with the unspecified IP is a node port, on every address of the node but
// loopback; one of kind lb.NodePort with an exact IP is a node port there, and none if the IP
// is a loopback one. No address may be in two Services.
//
// On an error each table has the rules of before or those requested.
func (e *Engine) Sync(ctx context.Context, d lb.Delta, node lb.Node) error {
	return e.sync(ctx, &d, node)
}

// Verify reports whether our chains and the jumps to them hold what the last Sync
// wrote and nothing else, and no rule of others is before such a jump; if not, call
// Sync. With the nf_tables backend it costs one netlink message if no rule on the host has
// changed since the last Verify, with the legacy backend one process.
func (e *Engine) Verify(ctx context.Context) (bool, error) { return e.verify(ctx) }

// Leftover reports whether an earlier process has left Services here. It costs some milliseconds, and waits for no
// lock.
func (e *Engine) Leftover(ctx context.Context) (bool, error) { return e.leftover(ctx) }

// Clients returns which backend each client of a Service with affinity was sent to last,
// the longest ago first. now is the time on the clock of lb.Client.LastUsed. The Service is
// one of the last Sync that had no error. The newest client counts as seen now, which is
// how the kernel's clock is learnt.
func (e *Engine) Clients(_ context.Context, s *lb.Service, now int64) ([]lb.Client, error) {
	return clients(s, now)
}

// Remember makes the kernel send clients of a Service with affinity to the backends that
// they had on another path. The Service is one of the last Sync that had no error, and clients
// are in the order of Clients. To the kernel they have come now, since it takes no other
// time, and it keeps as many for each backend as its lists hold. Clients of backends that
// the Service has not are left out.
func (e *Engine) Remember(_ context.Context, s *lb.Service, clients []lb.Client) error {
	return remember(s, clients)
}

// Stats is what an engine has done since it was made, and what is there.
type Stats struct {
	Restores    uint64 // runs of iptables-restore
	NATRules    int    // in the nat table, without the jumps to them
	FilterRules int    // in the filter table, without the jumps to them
}

// Stats may be called by any goroutine.
func (e *Engine) Stats() Stats { return e.stats() }

// Cleanup removes every trace of any engine of this package from the network namespace
// of the calling thread, of both address families and both backends of iptables.
// Established connections go on. It goes on after an error and returns all of them. If
// nothing is there it does nothing. It is not to run while an engine is in use.
func Cleanup(ctx context.Context) error { return cleanup(ctx) }
