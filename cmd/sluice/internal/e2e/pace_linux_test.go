package e2e

import (
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// TestMinSyncPeriod: rules are written no more often than --iptables-min-sync-period or
// --ipvs-min-sync-period says. Two changes after quiet are in force at once, those that
// follow wait and come together, and other endpoints of a Service wait only where the
// kernel forwards it.
func TestMinSyncPeriod(t *testing.T) {
	const period = 8 * time.Second
	for _, mode := range []string{"userspace", "iptables", "ipvs"} {
		t.Run(mode, func(t *testing.T) {
			needMode(t, mode)
			l := newLab(t, testbed.Config{Pods: 2})
			l.mode = mode
			l.serveWeb()
			flag := "--iptables-min-sync-period"
			if mode == "ipvs" {
				flag = "--ipvs-min-sync-period"
			}
			publish := func(name, ip string, pod *testbed.Host) {
				l.write(name+".yaml", service(name, ip+":80", "TCP", ""), slice(name, 1, 8080, "TCP", addrs(pod)...))
			}
			served := func(ip string, pod *testbed.Host) func() bool {
				return func() bool {
					name, err := whoWithin(300*time.Millisecond, l.Client, ip+":80")
					return err == nil && name == pod.Name
				}
			}
			publish("web", webIP, l.Pods[0])
			l.start(flag, period.String())

			begin := time.Now() // before the first of two writings that are made at once
			publish("one", "10.96.0.81", l.Pods[0])
			l.eventually("the first change is in force", served("10.96.0.81", l.Pods[0]))
			publish("two", "10.96.0.82", l.Pods[0])
			l.eventually("the second change is in force", served("10.96.0.82", l.Pods[0]))
			if d := time.Since(begin); d >= period {
				t.Fatalf("two changes took %v: this machine is too slow to tell", d)
			}

			publish("three", "10.96.0.83", l.Pods[0])
			l.eventually("the third change waits", func() bool { return l.metric("sluice_rule_syncs_deferred_total") > 0 })
			publish("web", webIP, l.Pods[1])
			publish("four", "10.96.0.84", l.Pods[0])
			if mode == "userspace" {
				l.eventually("other endpoints are in force", served(webIP, l.Pods[1]))
				if n := l.metric("kubeproxy_sync_proxy_rules_service_changes_pending"); n == 0 && time.Since(begin) < period {
					t.Error("nothing waits any more")
				}
			}
			l.eventually("the third change is in force", served("10.96.0.83", l.Pods[0]))
			if d := time.Since(begin); d < period {
				t.Errorf("rules were written three times in %v, want %v at least", d, period)
			}
			l.eventually("the fourth came with it", served("10.96.0.84", l.Pods[0]))
			l.eventually("and other endpoints", served(webIP, l.Pods[1]))
			if d := time.Since(begin); d > 2*period {
				t.Errorf("five changes took %v, want three writings in less than %v", d, 2*period)
			}
		})
	}
}
