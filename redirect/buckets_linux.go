package redirect

import (
	"fmt"
	"net/netip"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// buckets is into how many chains rules of UDP frontends are divided at the most, by the
// last bits of their addresses, which differ most: about as many as rules in each if there
// are 1,000. So a new flow is compared with a few dozen rules and not with a thousand, and
// to change one of them iptables and we read one bucket: nf_tables returns a rule as a
// kilobyte of expressions.
const buckets = 32

// bucketOf returns the number of the bucket of an address.
func bucketOf(addr netip.Addr) int {
	b := addr.As16()
	return int(b[len(b)-1]) % buckets
}

// bucket returns a bucket by its number.
func (s shape) bucket(i int) netfilter.Bucket {
	b := netfilter.Bucket{Table: "nat", Chain: fmt.Sprintf("%s-%02d", s.chain(chainUDP), i), From: s.chain(chainUDP)}
	b.Lead = rule(s.lastBits(i), "by the last bits", b.Chain)
	return b
}

// lastBits matches packets for the addresses of a bucket.
func (s shape) lastBits(i int) string {
	if s.ipv6 {
		return fmt.Sprintf("-d ::%x/::%x", i, buckets-1)
	}
	return fmt.Sprintf("-d 0.0.0.%d/0.0.0.%d", i, buckets-1)
}
