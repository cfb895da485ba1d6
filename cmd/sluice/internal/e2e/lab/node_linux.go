package lab

import (
	"net/netip"
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

// Holds returns which addresses of Services the node has on an interface.
func (l *Lab) Holds() (out []string) {
	l.T.Helper()
	for _, line := range strings.Split(l.Output("ip", "-o", "address", "show"), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		p, err := netip.ParsePrefix(fields[3])
		if err != nil {
			l.T.Fatal(err)
		}
		for _, services := range []string{"10.96.0.0/12", "198.51.100.0/24", "203.0.113.0/24", "2001:db8:96::/48"} {
			if netip.MustParsePrefix(services).Contains(p.Addr()) {
				out = append(out, p.Addr().String())
			}
		}
	}
	slices.Sort(out)
	return out
}

// Counters are what iptables-save and ipset save print beside the rules and members themselves.
var Counters = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]| timeout \d+$`)

// ownTables are Sluice's tables of nftables: those of iptables come with the programs that write to them, and stay.
var ownTables = regexp.MustCompile(`(?m)^table \S+ sluice\S*\n`)

// Traces is everything that rules and sets of the node say; of our tables of nftables, whether they are there.
func (l *Lab) Traces() string {
	rules := l.Output("iptables-save") + l.Output("ip6tables-save") + l.Output("ipset", "save") +
		strings.Join(ownTables.FindAllString(l.Output("nft", "list", "tables"), -1), "")
	return Counters.ReplaceAllString(rules, "") + l.Output("ip", "-brief", "addr") + l.virtualServers()
}

// Steered is what nftables steers with IPv4, and how.
func (l *Lab) Steered() string {
	const table = "sluice-steering"
	return l.Output("nft", "list", "map", table, "steer") + l.Output("nft", "list", "chain", table, "steer")
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
