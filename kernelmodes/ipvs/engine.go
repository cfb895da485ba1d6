package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// Engine forwards Services by ipvs in one address family; a dual-stack node uses two
// of them with the same Services. The zero value is usable: IPv4, round robin. Its methods
// are called by one goroutine, and work in the network namespace of the calling thread. Set
// the fields before the first call. There is nothing to close.
type Engine struct {
	// IPv6 chooses the address family.
	IPv6 bool

	// Scheduler is for Services that request none (--ipvs-scheduler), spelled as
	// lb.Service.Scheduler is. Empty means rr.
	Scheduler string

	// Masquerade is as everywhere, but that the mark is to be one of the lower 16 bits: the
	// upper ones number Services. What comes by LocalBridge or LocalInterfaces is, with what
	// comes from lb.Node.PodCIDRs, on this node for policy Local.
	kernelmodes.Masquerade

	// ExcludeCIDRs are where virtual servers are never removed
	// (--ipvs-exclude-cidrs).
	ExcludeCIDRs []netip.Prefix

	// StrictARP makes the node answer ARP for an address only on the interface that has
	// it, so that it does not claim those of load balancers (--ipvs-strict-arp).
	StrictARP bool

	// How long ipvs remembers a connection without packets, in whole seconds, rounded
	// up; 0 leaves it as it is. They hold for all virtual servers of the host.
	TCPTimeout    time.Duration // established (--ipvs-tcp-timeout)
	TCPFinTimeout time.Duration // after a FIN (--ipvs-tcpfin-timeout)
	UDPTimeout    time.Duration // (--ipvs-udp-timeout)

	// Lease is how long rules match without this process. nil: for ever. Virtual servers stay, since the kernel has no
	// timers for those: connections go on being forwarded, without being masqueraded.
	Lease *netfilter.Lease

	kernel
}

// Present reports whether this kernel has ip_vs, or a module of it, without loading or
// changing anything. Nil is no promise: a module may be missing all the same, as only
// Probe finds out. Otherwise the error has the reason and wraps errors.ErrUnsupported.
func Present(ctx context.Context) error { return present(ctx) }

// Probe checks that this host can forward Services: that the kernel has ip_vs, which
// it loads if it can, with the default scheduler, that there is an iptables, that we
// may use both, and that the kernel takes each kind of rule, set and virtual server, which
// are removed at once. The first call does the work; Sync calls it if it has not been called.
// After an error the next call probes again.
//
// The error names what is missing. It wraps errors.ErrUnsupported if that is ip_vs, and
// on other systems than Linux; exec.ErrNotFound if it is iptables; fs.ErrPermission
// if we may not.
func (e *Engine) Probe(ctx context.Context) error { return e.probe(ctx) }

// Sync makes the kernel forward the Services of the engine's family as d says from now on.
// A change costs what it changes, and an empty d next to nothing. The first d is whole, and so is the one after an
// error. For these, and after Verify returned false for an empty d too, Sync reads what is there and writes whatever
// differs. The Services are those of an lb.Table; they are kept, and must not be written to.
//
// Backends that a Service no longer has get weight 0: connections that they have go
// on, and the backend goes with the last of them; those of UDP go at once, with their
// conntrack entries. A Service that is removed goes in the same way. Connections are
// counted at each Sync and Verify.
//
// An address with the unspecified IP is a node port, on every address of the node; one with
// an exact IP takes precedence over it. Loopback addresses have no virtual servers: the kernel
// does not let what starts there leave the node. No address may be in two Services but for the
// time of one d.
//
// On an error each part of what is in effect may be of before or after.
func (e *Engine) Sync(ctx context.Context, d lb.Delta, node lb.Node) error {
	return e.sync(ctx, &d, node)
}

// Verify reports whether the kernel holds what the last Sync wrote: our virtual and
// real servers, our routes of addresses, our sets, chains and the jumps to
// them, before which no rule is that is not of Sluice. If not, call Sync. False is no
// error. It also removes backends whose last connection has ended.
func (e *Engine) Verify(ctx context.Context) (bool, error) { return e.verify(ctx) }

// Leftover reports whether an earlier process has left virtual servers here.
func (e *Engine) Leftover(context.Context) (bool, error) { return e.leftover() }

// Clients returns which backend each client of a Service with affinity was sent to last,
// the longest ago first, as far as the kernel remembers; one that has several addresses of
// the Service may be there several times. now is the time on the clock of
// lb.Client.LastUsed. It reads all connections of ipvs. Clients on this node of addresses
// with policy Local are not remembered.
func (e *Engine) Clients(_ context.Context, s *lb.Service, now int64) ([]lb.Client, error) {
	return e.clients(s, now)
}

// Remember returns an error that wraps errors.ErrUnsupported: the kernel makes its memory
// of clients itself, from their connections, and takes none by netlink. It would take the
// messages by which ipvs synchronises a backup, but those go over the network to the ipvs
// of every host.
func (e *Engine) Remember(context.Context, *lb.Service, []lb.Client) error {
	return fmt.Errorf("remember clients in ipvs: %w", errors.ErrUnsupported)
}

// Fallback is a Service that did not get the scheduler that it requests.
type Fallback struct {
	Service   lb.ID
	Requested string
	Used      string
	Reason    string
}

// Fallbacks returns those after the last Sync, sorted by Service.
func (e *Engine) Fallbacks() []Fallback { return e.fallbacks() }

// Stats is what there is in the kernel after the last Sync.
type Stats struct {
	VirtualServers int
	RealServers    int // weight 0 included
	Draining       int // of which have weight 0

	// Writes are changes since the engine was made: of a virtual or real server, of an
	// address, of up to 700 members of a set, or of rules.
	Writes uint64
}

// Stats counts.
func (e *Engine) Stats() Stats { return e.stats() }

// Counts are the kernel's own of what a virtual server, or one of its real servers, has had since the kernel has it.
// Bytes have the headers of IP. Connections and packets have 32 bits. The kernel sums them up every 2 s, unless
// net.ipv4.vs.run_estimation is 0.
type Counts struct {
	Connections           uint64 // and flows of UDP
	PacketsIn, PacketsOut uint64
	BytesIn, BytesOut     uint64
}

// ReadCounts passes the counts of each virtual server of ours that has had connections to visit, with a frontend of its
// Service, and those of the real servers that it has now. It needs no Engine, and any goroutine may call it.
func ReadCounts(ipv6 bool, visit func(of lb.Frontend, all Counts, each map[netip.AddrPort]Counts)) error {
	return counts(ipv6, visit)
}

// RemoveOthers removes the virtual servers of a family that no engine has made, but for those
// for marks and those in excluded, and returns how many. It may run beside engines.
func RemoveOthers(ipv6 bool, excluded []netip.Prefix) (int, error) {
	return removeOthers(ipv6, excluded)
}

// Cleanup removes every trace of any engine of this package from the network namespace
// of the calling thread, of both address families and both backends of iptables; the
// kernel's settings stay. Connections that were forwarded end. It goes on after an
// error and returns all of them. If nothing is there it does nothing. It is not to run
// while an engine is in use.
func Cleanup(ctx context.Context) error { return cleanup(ctx) }
