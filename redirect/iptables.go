package redirect

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// chainPrefix is how the names of all chains of this program begin.
const chainPrefix = "SLUICE-"

// NewLease returns the lease of all rules of this program in one address family. It lasts for its lifetime after it was
// renewed, in whole seconds; 0: for ever.
func NewLease(ipv6 bool, lifetime time.Duration) *netfilter.Lease {
	return &netfilter.Lease{IPv6: ipv6, Prefix: chainPrefix, Lifetime: lifetime}
}

// IPTables steers by iptables in one address family. The zero value is usable:
// IPv4, by the iptables in PATH. Its methods are called by one goroutine, except
// Stats, and work in the network namespace of the calling thread. Set the fields
// before the first call. There is nothing to close.
//
// It has chains:
//
//	mangle PREROUTING         -> SLUICE-PREROUTING -> SLUICE-OUTSIDE, SLUICE-DROP
//	mangle OUTPUT             -> SLUICE-DROP
//	nat    PREROUTING, OUTPUT -> SLUICE-STEER -> SLUICE-TCP, SLUICE-UDP -> SLUICE-UDP-00 to -31, SLUICE-SCTP
//	filter INPUT              -> SLUICE-INPUT -> SLUICE-REFUSE
//	filter FORWARD, OUTPUT    -> SLUICE-REFUSE
//
// Each jump is put first in its chain. Other programs may put rules before it later. Those of mangle are there from the
// first entry on that not every client may ask. Frontends are members of sets, SLUICE4-* and SLUICE6-*,
// so that one more of TCP is one netlink message. TCP frontends share a proxy port, since a
// connection remembers its destination. UDP and SCTP frontends have one each, and so a rule
// each; those of UDP are divided among chains by the last bits of their addresses. Node
// ports are not redirected: the proxy listens there. A kernel without sets gets rules for
// each frontend, with the same effect.
//
// SLUICE-OUTSIDE and SLUICE-DROP drop clients that may not ask, before nat changes the
// destination. SLUICE-INPUT accepts what was redirected or is for a port that the proxy
// listens on, whatever the policy of INPUT, and rejects a connection straight to a proxy
// port. SLUICE-REFUSE rejects what is asked of Services without endpoints, and of ports that a
// cluster IP does not have, and drops what is for other addresses of ServiceCIDRs; the latter
// two need sets, and leave the addresses of the node alone. All see only the first packet of a
// flow.
type IPTables struct {
	// IPv6 chooses the address family.
	IPv6 bool

	// Command is the iptables program, a name in PATH or a path; "-restore" is
	// appended for the program that writes. Empty means iptables, or ip6tables
	// for IPv6. Name iptables-nft or iptables-legacy to choose a backend other
	// than the one the host has chosen.
	Command string

	// BindAddr is where steered packets are sent: the address that the proxy
	// sockets are bound to. Invalid or unspecified means the primary address of
	// the interface that a packet came by, which needs sockets on the wildcard
	// address and an address on each interface. Naming an address of the node
	// lifts the latter, also for sockets on the wildcard. A loopback address is
	// refused: packets of other hosts cannot be sent there.
	BindAddr netip.Addr

	// NoIPSet makes one rule per frontend even if the kernel has sets.
	NoIPSet bool

	// Lease is how long rules match without this process, where the kernel has sets (Facts.IPSet). nil: for ever.
	Lease *netfilter.Lease

	kernel
}

// Facts is what Probe found.
type Facts struct {
	// Version is what iptables says of itself, as in "v1.8.9 (nf_tables)".
	Version string

	// IPSet says that frontends are members of sets, not rules.
	IPSet bool

	// Warnings are sentences for the administrator.
	Warnings []string
}

// Probe checks that this host can be steered: that there is an iptables, that we
// may use it, and that the kernel takes each kind of rule, in chains and sets that
// nothing leads to and that are removed at once. The first call does the work and
// later ones return its result; Sync calls it if it was not called. After an error the
// next call probes again.
//
// The error wraps exec.ErrNotFound if there is no iptables, fs.ErrPermission if
// we may not use it, and errors.ErrUnsupported on other systems than Linux.
func (t *IPTables) Probe(ctx context.Context) (Facts, error) { return t.probe(ctx) }

// Leftover is where rules of an earlier steerer, of a process that has ended, lead.
type Leftover struct {
	TCPPort uint16                 // of all TCP frontends; 0 for nowhere
	Ported  map[lb.Frontend]uint16 // UDP and SCTP frontends
	Table   bool                   // there is a table of nftables, be it that it leads nowhere
}

// Leftover reads where the rules that are there lead, in some milliseconds, which is less
// than Probe takes. What cannot be read is left out.
func (t *IPTables) Leftover(ctx context.Context) Leftover { return t.leftover(ctx) }

// Sync folds an update into the entries that it keeps, and makes the kernel do what these
// say and nothing else. It deletes no conntrack entries: the caller does, by flows.Stale,
// so that flows of UDP leave a path that has changed. It costs what the update changes. The first
// Sync, and each one after an error or after Verify returned false, an empty one
// included, reads what is there and writes everything.
//
// The first one that succeeds also removes the chains of this family that kube-proxy's
// removed userspace mode has left, in both backends of iptables.
//
// On an error the rules are those of before or those after the update, and frontends
// that are redirected before and after it are redirected. An update that contradicts
// itself, or adds a frontend that is there and is to stay, is an error that changes
// nothing and is not folded.
func (t *IPTables) Sync(ctx context.Context, u Update) error { return t.sync(ctx, u) }

// Verify reports whether our chains, the jumps to them and our sets hold what the
// last Sync wrote and nothing else; other programs may have rules before the jumps;
// if not, call Sync. False is no error. It runs no process with the nf_tables
// backend and one with the legacy backend, and is meant for a period of seconds:
// with 10,000 frontends it takes 11 ms and 15 ms (AMD EPYC, 2 cores, kernel 6.18).
func (t *IPTables) Verify(ctx context.Context) (bool, error) { return t.verify(ctx) }

// Stats is what a steerer has done since it was made.
type Stats struct {
	Writes   uint64 // runs of iptables-restore, or transactions of nf_tables
	Failures uint64 // of them, those that failed

	// Rules are how many each table of iptables has in our chains, as last written. The map
	// must not be changed.
	Rules map[string]int
}

// Stats may be called by any goroutine.
func (t *IPTables) Stats() Stats { return t.stats() }

// Cleanup removes every trace of any steerer of this package from the network
// namespace of the calling thread: chains, jumps, sets and conntrack entries of
// UDP flows, of both address families and both backends of iptables, and the chains
// of kube-proxy's removed userspace mode that Sync removes too. An nft table that did
// not exist before is removed if no other program has put anything in it. A table of
// the legacy backend cannot be removed, and stays empty.
//
// It goes on after an error and returns all of them. If nothing is there it does
// nothing. It is not to run while a steerer is in use.
func Cleanup(ctx context.Context) error { return cleanup(ctx) }
