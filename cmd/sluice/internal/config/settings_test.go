package config

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSettings: each value in effect is shown once, with where it comes from.
func TestSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+
		"mode: iptables\niptables: {syncPeriod: 30s}\nportRange: 1000-2000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		args []string
		want []Setting
	}{
		{[]string{"--manifests=/m", "--loops=3", "--cleanup-on-exit", "--healthz-port=9999",
			"--hostname-override=n1"}, []Setting{
			{"loops", "", "3", FromFlag}, {"on-exit", "", "cleanup", FromFlag}, {"drain-timeout", "", "30s",
				FromDefault},
			{"healthz-bind-address", "healthzBindAddress", "0.0.0.0:9999", FromFlag},
			{"metrics-bind-address", "metricsBindAddress", "127.0.0.1:10249", FromDefault},
			{"hostname-override", "hostnameOverride", "n1", FromFlag}, {"manifests", "", "[/m]", FromFlag},
			{"default-policy", "", "", FromDefault}}},
		{[]string{"--config=" + file, "--manifests=/m", "--iptables-min-sync-period=5s", "--hostname-override=n1"},
			[]Setting{
				{"proxy-mode", "mode", "iptables", FromFile}, {"iptables-sync-period", "iptables.syncPeriod", "30s",
					FromFile},
				{"iptables-min-sync-period", "iptables.minSyncPeriod", "1s", FromDefault}, // the file takes precedence
				{"proxy-port-range", "portRange", "1000-2000", FromFile}, {"hostname-override", "hostnameOverride", "n1",
					FromFlag}}},
	} {
		c, err := Parse(x.args)
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]Setting)
		for _, s := range c.Settings {
			if _, twice := got[s.Name]; twice {
				t.Errorf("%q: %s is shown twice", x.args, s.Name)
			}
			got[s.Name] = s
		}
		for _, want := range x.want {
			if got[want.Name] != want {
				t.Errorf("%q: %+v, want %+v", x.args, got[want.Name], want)
			}
		}
		for _, name := range []string{"help", "cleanup", "healthz-port", "feature-gates"} {
			if s, ok := got[name]; ok {
				t.Errorf("%q: %+v is shown", x.args, s)
			}
		}
	}
}
