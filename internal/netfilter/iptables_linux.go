package netfilter

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// IPTables is an iptables program of one address family. With nf_tables as its backend
// the kernel is asked by netlink what it holds, and the program only writes.
type IPTables struct {
	Path    string // "-restore" and "-save" are appended for its siblings
	Version string // what it says of itself, as in "v1.8.9 (nf_tables)"
	NFT     bool   // its backend is nf_tables
	IPv6    bool
}

// Open looks for an iptables program, a name in PATH or a path; empty means iptables, or
// ip6tables for IPv6. Its error says what to do if there is none, or if we may not write
// rules.
func Open(ctx context.Context, command string, ipv6 bool) (*IPTables, error) {
	if err := Privileged(); err != nil {
		return nil, err
	}
	command = cmp.Or(command, Program(ipv6))
	path, err := exec.LookPath(command)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w: install iptables 1.8 or later", command, err)
	}
	out, err := Run(ctx, nil, path, "-V")
	if err != nil {
		return nil, err
	}
	_, version, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	return &IPTables{path, version, strings.Contains(version, "nf_tables"), ipv6}, nil
}

// Restore runs iptables-restore once, on top of what is there. Each table is one
// transaction. A table of nf_tables that writing makes gets a mark: an empty chain of a
// name that begins with prefix, by which Remove knows that the table was not there before.
func (p *IPTables) Restore(ctx context.Context, prefix string, text []byte) error {
	if p.NFT {
		have, err := nftTables(nfnl.Family(p.IPv6))
		if err != nil {
			return err
		}
		text = slices.Concat(marks(have, prefix, text), text)
	}
	_, err := Run(ctx, text, p.Path+"-restore", "--noflush", lockWait)
	return err
}

// marks returns input of iptables-restore that puts a mark in each table that is not
// among have and that writing text will make.
func marks(have []string, prefix string, text []byte) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(text) {
		table := string(bytes.TrimSpace(bytes.TrimPrefix(line, []byte("*"))))
		if line[0] == '*' && !slices.Contains(have, table) {
			fmt.Fprintf(&b, "*%s\n:%s - [0:0]\nCOMMIT\n", table, MarkChain(prefix))
			have = append(have, table)
		}
	}
	return b.Bytes()
}

// MarkChain is the name of the mark.
func MarkChain(prefix string) string { return prefix + "CREATED-TABLE" }

// Rules returns the rules of the chains of a table that are chosen, as iptables -S prints them.
func (p *IPTables) Rules(ctx context.Context, table string, own func(table, chain string) bool) ([]string, error) {
	list := []string{lockWait, "-t", table, "-S"}
	lists := [][]string{list}
	if p.NFT { // which may not understand what other programs have put in the table's other chains
		chains, err := nftChains(nfnl.Family(p.IPv6), table)
		if err != nil {
			return nil, err
		}
		lists = nil
		for _, c := range chains {
			if own(table, c.Name) {
				lists = append(lists, append(slices.Clip(list), c.Name))
			}
		}
	}
	var rules []string
	for _, args := range lists {
		out, err := Run(ctx, nil, p.Path, args...)
		if err != nil {
			return nil, err
		}
		for rule := range strings.Lines(string(out)) {
			if w := strings.Fields(rule); len(w) > 1 && w[0] == "-A" && own(table, w[1]) {
				rules = append(rules, strings.TrimSuffix(rule, "\n"))
			}
		}
	}
	return rules, nil
}
