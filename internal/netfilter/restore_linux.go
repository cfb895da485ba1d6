package netfilter

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// chainPrefix is how the names of all chains of Sluice begin.
const chainPrefix = "SLUICE-"

// MarkChain marks an nft table that did not exist before we wrote to it. It is how
// another process, run with --cleanup after a crash, can know.
const MarkChain = chainPrefix + "CREATED-TABLE"

// Tables are the tables of iptables that any of us writes to.
var tables = []string{"mangle", "nat", "filter"}

// Family returns the netfilter family of an address family.
func Family(ipv6 bool) uint8 {
	if ipv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// Restore runs an iptables-restore program once, on top of what is there. Each
// table is one transaction. nft says that its backend is nf_tables, where a table
// that writing makes gets a mark.
func Restore(ctx context.Context, program string, nft, ipv6 bool, rules []byte) error {
	if nft {
		marks, err := marks(ipv6, rules)
		if err != nil {
			return err
		}
		rules = append(marks, rules...)
	}
	_, err := Run(ctx, rules, program, "--noflush", fmt.Sprintf("--wait=%d", LockWait))
	return err
}

// marks returns input of iptables-restore that puts a mark in each table that does
// not exist yet and will be made by writing the rules.
func marks(ipv6 bool, rules []byte) ([]byte, error) {
	have, err := nftTables(Family(ipv6))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, t := range tables {
		if !slices.Contains(have, t) && bytes.Contains(rules, []byte("*"+t+"\n")) {
			fmt.Fprintf(&b, "*%s\n:%s - [0:0]\nCOMMIT\n", t, MarkChain)
		}
	}
	return b.Bytes(), nil
}
