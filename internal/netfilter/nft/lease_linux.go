package nft

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// aliveSet has one element, while the table's rules are to match.
const aliveSet = "alive"

// alive leaves room for elements that have expired, or go in the transaction in which others come.
var alive = &set{Set: Set{Name: aliveSet, Key: []Field{NFProto}, Dynamic: true, Size: 64}}

// Renew makes the rules of a table match for another lifetime from now on, that of its Table.Lifetime, in whole
// milliseconds. A table that is not there, or has no lifetime, is left as it is. It may be called by any goroutine,
// and works in the network namespace of the calling thread.
func Renew(ipv6 bool, name string, lifetime time.Duration) error {
	b := (&Table{Name: name, IPv6: ipv6}).batch()
	b.expel(alive, []timed{{Element: Element{Key: Key(nfnl.Family(ipv6))}}}) // before Linux 6.12 it kept its timeout
	b.grant(lifetime)
	if err := b.send(); err != nil && !errors.Is(err, syscall.ENOENT) {
		return b.failed("renew", err)
	}
	return nil
}

// grant adds the element that lets rules match.
func (b *batch) grant(lifetime time.Duration) {
	e := Element{Key: Key(nfnl.Family(b.ipv6))}
	b.elements(unix.NFT_MSG_NEWSETELEM, alive, slices.Values([]timed{{Element: e, timeout: lifetime}}))
}
