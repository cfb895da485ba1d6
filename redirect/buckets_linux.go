package redirect

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-lb/sluice/lb"
)

// Rules of UDP frontends are divided among chains, buckets, by the last bits of their
// addresses, which differ most. So a new flow is compared with a few dozen rules and not
// with a thousand, and to change one of them iptables and we read one bucket: nf_tables
// gives a rule back to whoever looks for it as a kilobyte of expressions. A bucket is
// there while it has rules.

// buckets is how many there are at the most: about as many as rules in each if there
// are 1,000.
const buckets = 32

// bucketOf returns the number of the bucket of an address.
func bucketOf(addr netip.Addr) int {
	b := addr.As16()
	return int(b[len(b)-1]) % buckets
}

// bucketsOf returns the numbers of the buckets that a plan of one family needs, in order.
func bucketsOf(p Plan) []int {
	var used [buckets]bool
	for _, f := range p.Ported {
		if f.Frontend.Protocol == lb.UDP {
			used[bucketOf(f.Frontend.Addr.Addr())] = true
		}
	}
	var out []int
	for i, is := range used {
		if is {
			out = append(out, i)
		}
	}
	return out
}

// bucketPrefix is how the names of buckets begin.
func (s shape) bucketPrefix() string { return s.chain(chainUDP) + "-" }

// bucket returns the name of a bucket.
func (s shape) bucket(i int) string { return fmt.Sprintf("%s%02d", s.bucketPrefix(), i) }

// isBucket reports whether a chain is a bucket.
func (s shape) isBucket(chain string) bool { return strings.HasPrefix(chain, s.bucketPrefix()) }

// lastBits matches packets for the addresses of a bucket.
func (s shape) lastBits(i int) string {
	if s.ipv6 {
		return fmt.Sprintf("-d ::%x/::%x", i, buckets-1)
	}
	return fmt.Sprintf("-d 0.0.0.%d/0.0.0.%d", i, buckets-1)
}

// removal returns the input of iptables-restore that removes chains of a table, to which
// no jump may lead. They need not exist.
func removal(table string, chains []string) []byte {
	var b script
	if len(chains) == 0 {
		return nil
	}
	b.table(table)
	for _, c := range chains {
		b.chain(c) // empties it
	}
	for _, c := range chains {
		fmt.Fprintf(&b, "-X %s\n", c)
	}
	b.commit()
	return b.Bytes()
}
