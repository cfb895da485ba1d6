package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// WinUserspace makes the program run in that mode, with no program in its PATH.
func (l *Lab) WinUserspace() *Lab {
	l.Mode, l.env = "winuserspace", []string{"PATH=" + l.T.TempDir()}
	return l
}

// Counters are what iptables-save and ipset save print beside the rules and members themselves.
var Counters = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]| timeout \d+$`)

// ownTables are Sluice's tables of nftables: those of iptables come with the programs that write to them, and stay.
var ownTables = regexp.MustCompile(`(?m)^table \S+ sluice\S*\n`)

// sets are those that nft lists of a table, with their elements if they have any.
var sets = regexp.MustCompile(`(?ms)^\t(set|map) (\S+) \{\n(.*?)(?:\t\telements = \{ (.*?) \}\n)?\t\}\n`)

// Traces is everything that rules and sets of the node say; of our tables of nftables, what is in their sets and maps.
func (l *Lab) Traces() string {
	rules := l.Output("iptables-save") + l.Output("ip6tables-save") + l.Output("ipset", "save")
	for _, table := range ownTables.FindAllString(l.Output("nft", "list", "tables"), -1) {
		rules += table + l.elements(strings.Fields(table)...)
	}
	return Counters.ReplaceAllString(rules, "") + l.Output("ip", "-brief", "addr") + l.virtualServers()
}

// elements are those of the sets and maps of a table, sorted, since a hash has no order. What rules have
// added, and times out, is left out.
func (l *Lab) elements(table ...string) string {
	var out []string
	for _, set := range sets.FindAllStringSubmatch(l.Output("nft", append([]string{"list"}, table...)...), -1) {
		if kind, name, flags, list := set[1], set[2], set[3], set[4]; !strings.Contains(flags, "dynamic") {
			out = append(out, fmt.Sprintf(" %s %s\n", kind, name))
			for e := range strings.SplitSeq(list, ",") {
				if e = strings.TrimSpace(e); e != "" {
					out = append(out, fmt.Sprintf(" %s %s: %s\n", kind, name, e))
				}
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// Steered is what nftables steers with IPv4, and how.
func (l *Lab) Steered() string {
	const table = "sluice-steering"
	return l.Output("nft", "list", "map", table, "steer") + l.Output("nft", "list", "chain", table, "frontends")
}

// virtualServers is what ipvsadm says of the node, without counts; nothing where the
// kernel has no ip_vs.
func (l *Lab) virtualServers() string {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		return ""
	}
	return l.Output("ipvsadm", "-Sn")
}

// ConfigFile returns the path of a file of --config, and what writes it, without the header.
func ConfigFile(t *testing.T) (path string, write func(text string)) {
	path = filepath.Join(t.TempDir(), "kube-proxy.yaml")
	return path, func(text string) {
		t.Helper()
		text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + text
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
