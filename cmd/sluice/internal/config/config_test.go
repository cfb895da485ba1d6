package config

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestDefaults(t *testing.T) {
	c, err := Parse([]string{"--manifests", "a", "--manifests=b,c", "--proxy-mode="})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Manifests) != 2 || c.Manifests[1] != "b,c" || c.Mode != "userspace" || c.UDPTimeout != 250*time.Millisecond ||
		c.BindAddress != netip.IPv4Unspecified() || c.Loops < 1 || c.HealthzAddress != "0.0.0.0:10256" || c.MetricsAddress != "127.0.0.1:10249" {
		t.Errorf("Parse = %+v", c)
	}
}

func TestCleanupNeedsNoManifests(t *testing.T) {
	if c, err := Parse([]string{"--cleanup"}); err != nil || !c.Cleanup {
		t.Errorf("Parse(--cleanup) = %+v, %v", c, err)
	}
}

// TestMistakes: each error names the flag and what to do.
func TestMistakes(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"", "--manifests"},
		{"--manifests x --proxy-mode iptables", "not supported by this release"},
		{"--manifests x --proxy-mode bridge", "unknown: use userspace"},
		{"--manifests x --bind-address 127.0.0.1", "cannot proxy on localhost"},
		{"--manifests x --bind-address ::1", "cannot proxy on localhost"},
		{"--manifests x --bind-address fe80::1%eth0", "link-local"},
		{"--manifests x --nodeport-addresses 1.2.3.4", "--nodeport-addresses"},
		{"--manifests x --node-pod-cidrs 10.0.0.1", "--node-pod-cidrs"},
		{"--manifests x --iptables-sync-period 1ms", "--iptables-sync-period"},
		{"--manifests x --conntrack-min=-1", "--conntrack-min"},
		{"--manifests x --conntrack-udp-timeout=-1s", "--conntrack-udp-timeout"},
		{"--manifests x --bind-address node1", "not an IP address"},
		{"--manifests x --proxy-port-range 9-1", "--proxy-port-range"},
		{"--manifests x --proxy-port-range 1-70000", "--proxy-port-range"},
		{"--manifests x --udp-timeout 0", "--udp-timeout"},
		{"--manifests x --udp-timeout 5", "--udp-timeout"},
		{"--manifests x --drain-timeout -1s", "--drain-timeout"},
		{"--manifests x --loops 0", "--loops"},
		{"--manifests x --healthz-bind-address 10256", "--healthz-bind-address"},
		{"--manifests x --metrics-bind-address 1.2.3.4:http", "--metrics-bind-address"},
		{"--manifests x --metrics-bind-address host:1", "--metrics-bind-address"},
		{"--manifests x y", `"y" is not a flag`},
		{"--no-such-flag", "no-such-flag"},
	} {
		if _, err := Parse(strings.Fields(test.args)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Parse(%s) = %v, want an error with %q", test.args, err, test.want)
		}
	}
}

// TestUsage: every flag is in the help, each in one group.
func TestUsage(t *testing.T) {
	usage := Usage()
	all, groups := declare(new(Config), new(texts))
	count := 0
	for _, g := range groups {
		if !strings.Contains(usage, "\n"+g.title+":\n") {
			t.Errorf("the help has no group %q", g.title)
		}
		g.flags.VisitAll(func(f *pflag.Flag) {
			count++
			if !strings.Contains(usage, "--"+f.Name+" ") && !strings.Contains(usage, "--"+f.Name+"\n") {
				t.Errorf("the help has no --%s", f.Name)
			}
		})
	}
	total := 0
	all.VisitAll(func(*pflag.Flag) { total++ })
	if count != total {
		t.Errorf("%d flags in groups, %d in all", count, total)
	}
}
