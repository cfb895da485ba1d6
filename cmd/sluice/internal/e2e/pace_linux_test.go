package e2e

import (
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestMinSyncPeriod: rules are written no more often than --iptables-min-sync-period or
// --ipvs-min-sync-period says. Two changes after quiet are in force at once, those that
// follow wait and come together, and other endpoints of a Service wait only where the
// kernel forwards it.
func TestMinSyncPeriod(t *testing.T) {
	testbed.Race(t)
	testbed.VM(t)
	t.Parallel()
	const period = 8 * time.Second
	lab.EachMode(t, []string{"userspace", "nftables", "iptables", "ipvs"}, func(t *testing.T, mode string) {
		l := lab.New(t, testbed.Config{Pods: 2})
		l.Mode = mode
		l.ServeWeb()
		flag := "--iptables-min-sync-period"
		if mode == "ipvs" {
			flag = "--ipvs-min-sync-period"
		}
		publish := func(name, ip string, pod *testbed.Host) {
			l.Publish(name, ip+":80", "TCP", "", 8080, pod)
		}
		served := func(ip string, pod *testbed.Host) func() bool {
			return func() bool {
				name, err := l.Client.TryAsk("tcp", ip+":80", 300*time.Millisecond)
				return err == nil && name == pod.Name
			}
		}
		publish("web", lab.WebIP, l.Pods[0])
		l.Start(flag, period.String())

		begin := time.Now() // before the first of two writings that are made at once
		publish("one", "10.96.0.81", l.Pods[0])
		l.Eventually("the first change is in force", served("10.96.0.81", l.Pods[0]))
		publish("two", "10.96.0.82", l.Pods[0])
		l.Eventually("the second change is in force", served("10.96.0.82", l.Pods[0]))
		if d := time.Since(begin); d >= period {
			t.Fatalf("two changes took %v: this machine is too slow to tell", d)
		}

		publish("three", "10.96.0.83", l.Pods[0])
		l.Eventually("the third change waits", func() bool {
			return l.Metric(`sluice_deferred_total{work="rule_sync"}`) > 0
		})
		publish("web", lab.WebIP, l.Pods[1])
		publish("four", "10.96.0.84", l.Pods[0])
		if mode == "userspace" {
			l.Eventually("other endpoints are in force", served(lab.WebIP, l.Pods[1]))
			n := l.Metric("kubeproxy_sync_proxy_rules_service_changes_pending")
			if n == 0 && time.Since(begin) < period {
				t.Error("nothing waits any more")
			}
		}
		l.Eventually("the third change is in force", served("10.96.0.83", l.Pods[0]))
		if d := time.Since(begin); d < period {
			t.Errorf("rules were written three times in %v, want %v at least", d, period)
		}
		l.Eventually("the fourth came with it", served("10.96.0.84", l.Pods[0]))
		l.Eventually("and other endpoints", served(lab.WebIP, l.Pods[1]))
		if d := time.Since(begin); d > 2*period {
			t.Errorf("five changes took %v, want three writings in less than %v", d, 2*period)
		}
	})
}
