package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// stateCommands list what a proxy might change in its node's kernel.
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

// kernelState returns the node's rules, sets, addresses, routes, and settings, one
// a line.
func kernelState(ctx context.Context, node *testbed.Host) (string, error) {
	var all strings.Builder
	for _, args := range stateCommands {
		out, err := node.Command(ctx, args[0], args[1:]...).Output()
		if err != nil {
			return "", fmt.Errorf("look at the node: %s: %w", strings.Join(args, " "), err)
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

// difference lists the lines that only one of two states has, as "+ new" and
// "- gone".
func difference(before, after string) []string {
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
