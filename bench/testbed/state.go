package testbed

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// stateCommands show what a proxy might change in its node's kernel.
var stateCommands = [][]string{
	{"iptables-save"},
	{"ip6tables-save"},
	{"ipset", "list", "-name"},
	{"ip", "-oneline", "address"},
	{"ip", "rule"},
	{"ip", "-6", "rule"},
	{"ip", "route", "show", "table", "all"},
	{"ip", "-6", "route", "show", "table", "all"},
	{"sysctl", "--all", "--pattern", `^net\.ipv[46]\.(conf\.|ip_|tcp_)`},
}

// KernelState returns the host's rules, sets, addresses, routes, and settings, one a
// line, after the name of the command that shows them.
func (h *Host) KernelState(ctx context.Context) (string, error) {
	var all strings.Builder
	for _, args := range stateCommands {
		out, err := h.Command(ctx, args[0], args[1:]...).Output()
		if err != nil {
			return "", fmt.Errorf("read the kernel state of host %s: %s: %w", h.Name, strings.Join(args, " "), err)
		}
		for line := range strings.Lines(string(out)) {
			if line = strings.TrimSpace(line); significant(line) {
				fmt.Fprintf(&all, "%s: %s\n", args[0], line)
			}
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
