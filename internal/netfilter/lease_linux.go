package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// name is that of the set.
func (l *Lease) name() string {
	family := "4-"
	if l.IPv6 {
		family = "6-"
	}
	return strings.TrimSuffix(l.Prefix, "-") + family + leaseSuffix
}

// match matches every packet while the lease lasts.
func (l *Lease) match() string { return "-m set --match-set " + l.name() + " src " }

// Set is the set whose members make the jumps match.
func (l *Lease) Set() Set { return Set{Name: l.name(), Type: HashNet, IPv6: l.IPv6, Timed: true} }

// grant is Renew, and makes the set if it is not there.
func (l *Lease) grant() error {
	if l == nil {
		return nil
	}
	if err := l.Set().Create(); err != nil {
		return err
	}
	return l.renew()
}

// end makes the rules match nothing from now on, as long as no ruleset with the lease is written.
func (l *Lease) end() error {
	if err := setRequest(nl.IPSET_CMD_FLUSH, l.name(), nil, nil, nil); err != nil && !errors.Is(err, syscall.ENOENT) &&
		!nfnl.NoSubsystem(err) {
		return fmt.Errorf("flush set %s: %w", l.name(), err)
	}
	return nil
}

// remove removes the set, unless rules match it.
func (l *Lease) remove() error {
	err := setRequest(nl.IPSET_CMD_DESTROY, l.name(), nil, nil, nil)
	if err == nil || errors.Is(err, syscall.ENOENT) || nfnl.NoSubsystem(err) ||
		errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) {
		return nil
	}
	return fmt.Errorf("destroy set %s: %w", l.name(), err)
}

// renew adds the two halves of all addresses with their timeout, or sets it anew if they are there (ipset(8), -exist).
// A timeout of 0 is none.
func (l *Lease) renew() error {
	var members []byte
	for i, half := range Halves(netip.PrefixFrom(Unspecified(l.IPv6), 0)) {
		b := nfnl.Attr(Member{Net: half}.data(i), nl.IPSET_ATTR_TIMEOUT|unix.NLA_F_NET_BYTEORDER,
			nl.BEUint32Attr(uint32(l.Lifetime/time.Second)))
		members = nfnl.AttrNested(members, nl.IPSET_ATTR_DATA, b)
	}
	if _, err := l.Set().send("renew", nl.IPSET_CMD_ADD, members); !errors.Is(err, syscall.ENOENT) {
		return err
	}
	return nil
}
