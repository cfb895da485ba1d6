package redirect

import (
	"context"
	"net/netip"
	"time"
)

// NFTables steers by nf_tables in one address family, without any program. The zero value
// is usable: IPv4. Its methods are called by one goroutine, except Stats and Renew, and work
// in the network namespace of the calling thread. Set the fields before the first call.
// There is nothing to close.
type NFTables struct {
	// IPv6 chooses the address family.
	IPv6 bool

	// BindAddr is as in IPTables.
	BindAddr netip.Addr

	// Lifetime is how long rules match after the first Sync or the last Renew, in whole milliseconds;
	// 0: for ever.
	Lifetime time.Duration

	nftKernel
}

// Probe checks that this host can be steered: that its kernel takes each kind of rule, in a
// transaction that leaves nothing and that no packet meets. The first call does the work and
// later ones return its result; Sync calls it if it was not called. After an error the next
// call probes again.
//
// The error says what is missing. It wraps fs.ErrPermission if we may not use nf_tables, and
// errors.ErrUnsupported on other systems than Linux.
func (t *NFTables) Probe(ctx context.Context) error { return t.probe(ctx) }

// Leftover is as that of IPTables, whose rules it reads too where there are none of nf_tables.
func (t *NFTables) Leftover(ctx context.Context) Leftover { return t.leftover(ctx) }

// Sync is as that of IPTables, and is one transaction of the kernel unless it changes who may
// ask. The first one that succeeds also removes what IPTables, and kube-proxy's removed
// userspace mode, have left in this family.
func (t *NFTables) Sync(ctx context.Context, u Update) error { return t.sync(ctx, u) }

// Verify reports whether the table is as the last Sync wrote it; if not, call Sync. False is
// no error. While no other program has written to nf_tables it costs one message.
func (t *NFTables) Verify(ctx context.Context) (bool, error) { return t.verify(ctx) }

// Renew has the rules match for another Lifetime from now on. Where there is no table it does
// nothing. It may be called by any goroutine.
func (t *NFTables) Renew() error { return t.renew() }

// Stats may be called by any goroutine.
func (t *NFTables) Stats() Stats { return t.stats() }
