package netfilter

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"

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

// client returns what lists rules. Making it runs the program once more.
func (p *IPTables) client() (*iptables.IPTables, error) {
	family := iptables.ProtocolIPv4
	if p.IPv6 {
		family = iptables.ProtocolIPv6
	}
	client, err := iptables.New(iptables.IPFamily(family), iptables.Path(p.Path), iptables.Timeout(LockWait))
	if err != nil {
		return nil, fmt.Errorf("use %s: %w", p.Path, err)
	}
	return client, nil
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
	_, err := Run(ctx, text, p.Path+"-restore", "--noflush", fmt.Sprintf("--wait=%d", LockWait))
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

// Chains returns the names of all chains of a table, none if it does not exist. It waits for no lock.
func (p *IPTables) Chains(ctx context.Context, table string) (out []string, err error) {
	if !p.NFT {
		saved, err := p.saved(ctx, table)
		return slices.Collect(maps.Keys(saved)), err
	}
	chains, err := nftChains(nfnl.Family(p.IPv6), table)
	for _, c := range chains {
		out = append(out, c.Name)
	}
	return out, err
}

// Rules returns the rules of some chains of a table, as iptables -S prints them, those of each chain together. It waits
// for no lock.
func (p *IPTables) Rules(ctx context.Context, table string, of func(chain string) bool) (out []string, err error) {
	if !p.NFT {
		saved, err := p.saved(ctx, table)
		for chain, rules := range saved {
			for _, r := range rules {
				if of(chain) {
					out = append(out, "-A "+r.ID)
				}
			}
		}
		return out, err
	}
	chains, err := p.Chains(ctx, table)
	if err != nil {
		return nil, err
	}
	if chains = slices.DeleteFunc(chains, func(chain string) bool { return !of(chain) }); len(chains) == 0 {
		return nil, nil
	}
	client, err := p.client()
	if err != nil {
		return nil, err
	}
	for _, chain := range chains {
		rules, err := client.List(table, chain)
		if err != nil {
			return out, fmt.Errorf("list %s: %w", Place{table, chain}, err)
		}
		out = append(out, slices.DeleteFunc(rules, func(r string) bool { return !strings.HasPrefix(r, "-A ") })...)
	}
	return out, nil
}

// saved returns the chains of a table of the legacy backend. Unlike iptables -S, iptables-save takes no lock.
func (p *IPTables) saved(ctx context.Context, table string) (map[string][]Rule, error) {
	text, err := Run(ctx, nil, p.Path+"-save", "-t", table)
	if err != nil {
		return nil, err
	}
	out := make(map[string][]Rule)
	for at, rules := range savedRules(string(text), "") {
		out[at.Chain] = rules
	}
	return out, nil
}
