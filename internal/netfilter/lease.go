package netfilter

import (
	"strings"
	"time"
)

// Lease is a dead man's switch, which needs no process to work: the jumps of rulesets with a lease match while a set
// has members that every packet matches, and the kernel's timers remove those unless Renew is called in time. Each
// address family has one. It may be used by several rulesets and goroutines.
type Lease struct {
	IPv6     bool
	Prefix   string        // that of the layouts
	Lifetime time.Duration // from Renew on, in whole seconds; 0: for ever
}

const leaseSuffix = "ALIVE"

// IsLease reports whether a set is that of a lease, of any prefix and family.
func IsLease(set string) bool { return strings.HasSuffix(set, "-"+leaseSuffix) }

// Renew makes the lease last for its lifetime from now on. It costs a netlink message. If there is none, since no
// ruleset with it has been written or all have been removed, it does nothing. On other systems than Linux the error is
// errors.ErrUnsupported.
func (l *Lease) Renew() error { return l.renew() }
