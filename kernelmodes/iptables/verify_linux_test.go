package iptables

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// TestVerify: every damage to what the engine wrote is noticed and repaired, rules of other
// programs are no damage and stay, and another process takes over what it finds.
func TestVerify(t *testing.T) {
	testbed.EachIPTables(t, func(t *testing.T, h *testbed.Host, v testbed.IPTables) {
		c := v.Command()
		e := engineOf(v)
		services := []lb.Service{plain(v.IPv6, 1, 1, 2), plain(v.IPv6, 2, 3)}
		syncOn(t, h, e, lb.Node{}, services...)
		svc := prefixCluster + kernelmodes.Suffix(services[0].ID, "")
		for _, damage := range []string{
			"-t nat -F", "-F", "-t nat -F PREROUTING", "-t nat -F " + svc, "-t nat -D " + svc + " 1",
			"-t nat -R " + svc + " 1 -j RETURN", "-t nat -A " + svc + " -j RETURN",
			"-D FORWARD 2", "-t nat -A POSTROUTING -j SLUICE-POSTROUTING",
			"-t nat -N SLUICE-SVC-MINE; " + c + " -t nat -A SLUICE-SVC-MINE -j ACCEPT",
			"-t nat -N MINE; " + c + " -t nat -A MINE -j " + svc,
		} {
			shell(t, h, c+" "+damage)
			if verifyOn(t, h, e) {
				t.Errorf("not noticed: %s", damage)
			}
			syncOn(t, h, e, lb.Node{}, services...)
			compare(t, save(t, h, v), e, lb.Node{}, services)
			if !verifyOn(t, h, e) || t.Failed() {
				t.Fatalf("not repaired: %s", damage)
			}
		}
		shell(t, h, c+" -t nat -I PREROUTING -p tcp --dport 7 -j ACCEPT; "+c+" -N OTHER; "+c+" -A OTHER -j DROP")
		if !verifyOn(t, h, e) {
			t.Error("rules of other programs count as damage")
		}
		e = engineOf(v)
		syncOn(t, h, e, lb.Node{}, services[1])
		now := save(t, h, v)
		compare(t, now, e, lb.Node{}, services[1:])
		if !verifyOn(t, h, e) || !strings.Contains(now, "-A OTHER -j DROP") || !strings.Contains(now, "--dport 7") {
			t.Errorf("after another process took over:\n%s", now)
		}
	})
}

// TestVerifyWhileAnotherTries: what a process that starts tries is no damage to what serves, which leaves it alone also
// while it repairs its own. What is left of it goes with the next Probe, or with Cleanup.
func TestVerifyWhileAnotherTries(t *testing.T) {
	testbed.EachIPTables(t, func(t *testing.T, h *testbed.Host, v testbed.IPTables) {
		c := v.Command()
		e := engineOf(v)
		service := plain(v.IPv6, 1, 1, 2)
		syncOn(t, h, e, lb.Node{}, service)
		try := func() {
			shell(t, h, strings.ReplaceAll("C -t nat -N SLUICE-TRY-SVC-; C -t nat -N SLUICE-TRY-SERVICES; "+
				"C -t nat -A SLUICE-TRY-SERVICES -j SLUICE-TRY-SVC-; C -N SLUICE-TRY-UNSERVED; C -N SLUICE-TRY-NOADDR-01; "+
				"C -A SLUICE-TRY-UNSERVED -j SLUICE-TRY-NOADDR-01", "C ", c+" "))
		}
		try()
		if !verifyOn(t, h, e) {
			t.Error("chains that another tries count as damage")
		}
		shell(t, h, c+" -t nat -F SLUICE-SERVICES")
		if verifyOn(t, h, e) {
			t.Error("not noticed")
		}
		syncOn(t, h, e, lb.Node{}, service)
		if now := save(t, h, v); strings.Count(now, "SLUICE-TRY-") != 8 || !verifyOn(t, h, e) {
			t.Errorf("while another tries a repair leaves\n%s", now)
		}
		h.DoT(t, func() error { _, err := engineOf(v).Probe(t.Context()); return err })
		if now := save(t, h, v); strings.Contains(now, "SLUICE-TRY-") || !verifyOn(t, h, e) {
			t.Errorf("after another Probe there is\n%s", now)
		}
		try()
		h.DoT(t, func() error { return Cleanup(t.Context()) })
		if now := save(t, h, v); strings.Contains(now, "SLUICE-") {
			t.Errorf("after Cleanup there is\n%s", now)
		}
	})
}

// TestCleanup: nothing is left but what other programs have.
func TestCleanup(t *testing.T) {
	testbed.EachIPTables(t, func(t *testing.T, h *testbed.Host, v testbed.IPTables) {
		c := v.Command()
		shell(t, h, c+" -t nat -N KUBE-SERVICES; "+c+" -N SLUICE-REFUSE")
		before := save(t, h, v)
		e := engineOf(v)
		syncOn(t, h, e, lb.Node{}, plain(v.IPv6, 1, 1, 2))
		for range 2 {
			h.DoT(t, func() error { return Cleanup(t.Context()) })
		}
		if after := save(t, h, v); strip(after) != strip(before) {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// strip leaves out comments, which have the time, and counters.
func strip(save string) string {
	return regexp.MustCompile(`(?m)^#.*\n| \[.*`).ReplaceAllString(save, "")
}

// TestFailure: after an error the next Sync, which gets everything, writes everything.
func TestFailure(t *testing.T) {
	testbed.EachIPTables(t, func(t *testing.T, h *testbed.Host, v testbed.IPTables) {
		dir := t.TempDir()
		e := engineOf(v)
		e.Command = testbed.WrapIPTables(t, dir, v.Command(),
			"[ ! -e "+dir+"/fail ] || { echo 'line 3 failed' >&2; exit 1; }")
		one, two := plain(v.IPv6, 1, 1, 2), plain(v.IPv6, 2, 3)
		syncOn(t, h, e, lb.Node{}, one)
		testbed.Check(t, os.WriteFile(filepath.Join(dir, "fail"), nil, 0o644))
		err := h.Do(func() error { return e.Sync(t.Context(), whole(two), lb.Node{}) })
		if err == nil || !strings.Contains(err.Error(), "line 3 failed") {
			t.Errorf("Sync = %v, want what iptables said", err)
		}
		testbed.Check(t, os.Remove(filepath.Join(dir, "fail")))
		shell(t, h, v.Command()+" -t nat -F SLUICE-SERVICES") // which the change does not name
		syncOn(t, h, e, lb.Node{}, two)
		compare(t, save(t, h, v), e, lb.Node{}, []lb.Service{two})
	})
}
