package testbed

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// stateCommands show what a proxy might change in its node's kernel. Those of packet filters are
// asked where they are installed.
var stateCommands = []struct {
	optional bool
	args     []string
}{
	{true, []string{"iptables-save"}},
	{true, []string{"ip6tables-save"}},
	{true, []string{"ipset", "list", "-name"}},
	{false, []string{"ip", "-oneline", "address"}},
	{false, []string{"ip", "rule"}},
	{false, []string{"ip", "-6", "rule"}},
	{false, []string{"ip", "route", "show", "table", "all"}},
	{false, []string{"ip", "-6", "route", "show", "table", "all"}},
	{false, []string{"sysctl", "--all", "--pattern", `^net\.ipv[46]\.(conf\.|ip_|tcp_)`}},
}

// iptablesTables are those that iptables makes (iptables(8), "TABLES").
var iptablesTables = []string{"filter", "nat", "mangle", "raw", "security"}

// KernelState returns the host's rules, sets, addresses, routes, and settings, one a
// line, after the name of the command that shows them, and the names of nf_tables' tables but
// iptables' own, which stay once they are there.
func (h *Host) KernelState(ctx context.Context) (string, error) {
	var all strings.Builder
	for _, c := range stateCommands {
		if _, err := exec.LookPath(c.args[0]); err != nil && c.optional {
			continue
		}
		out, err := h.Command(ctx, c.args[0], c.args[1:]...).Output()
		if err != nil {
			return "", fmt.Errorf("read the kernel state of host %s: %s: %w", h.Name, strings.Join(c.args, " "), err)
		}
		for line := range strings.Lines(string(out)) {
			if line = strings.TrimSpace(line); significant(line) {
				fmt.Fprintf(&all, "%s: %s\n", c.args[0], line)
			}
		}
	}
	var tables []string
	err := h.Do(func() (err error) {
		tables, err = filterTables()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("list the tables of nf_tables on host %s: %w", h.Name, err)
	}
	for _, name := range tables {
		if _, table, _ := strings.Cut(name, " "); !slices.Contains(iptablesTables, table) {
			fmt.Fprintf(&all, "nf_tables: %s\n", name)
		}
	}
	return all.String(), nil
}

// significant reports whether a line says something: iptables-save lists, beside
// rules and chains, the tables that were ever looked at, and the chains that each
// of them has from the start.
func significant(line string) bool {
	switch {
	case line == "" || line == "COMMIT", line[0] == '#', line[0] == '*':
		return false
	case line[0] == ':': // ":INPUT ACCEPT [0:0]"; a chain of one's own has "-" for ACCEPT
		return !strings.Contains(line, " ACCEPT ")
	}
	return true
}

// StateDiff lists the lines that only one of two states has, as "+ new" and
// "- gone".
func StateDiff(before, after string) []string {
	var diff []string
	only := func(mark, a, b string) {
		others := strings.Split(b, "\n")
		for _, line := range strings.Split(a, "\n") {
			if !slices.Contains(others, line) {
				diff = append(diff, mark+line)
			}
		}
	}
	only("- ", before, after)
	only("+ ", after, before)
	return diff
}
