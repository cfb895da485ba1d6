package netfilter

import (
	"context"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// chainPrefix is how the names of all chains of Sluice begin.
const chainPrefix = "SLUICE-"

// allTables are the tables of iptables that rulesets may be in.
var allTables = []string{"mangle", "nat", "filter"}

// Family returns the netfilter family of an address family.
func Family(ipv6 bool) uint8 { return nfnl.Family(ipv6) }

// NoSubsystem is nfnl.NoSubsystem.
func NoSubsystem(err error) bool { return nfnl.NoSubsystem(err) }

// Restore runs an iptables-restore program once, on top of what is there. Each
// table is one transaction. nft says that its backend is nf_tables, where a table
// that writing makes gets a mark.
func Restore(ctx context.Context, program string, nft, ipv6 bool, rules []byte) error {
	p := IPTables{Path: strings.TrimSuffix(program, "-restore"), NFT: nft, IPv6: ipv6}
	return p.Restore(ctx, chainPrefix, rules)
}
