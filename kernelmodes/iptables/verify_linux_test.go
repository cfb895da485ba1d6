package iptables

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestVerify: what other programs do to our rules is noticed and repaired; what they do
// elsewhere is not touched.
func TestVerify(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *testbed.Host, v variant) {
		c := v.command()
		e := v.engine()
		services := []lb.Service{plain(v.ipv6, 1, 1, 2), plain(v.ipv6, 2)}
		node := lb.Node{}
		syncOn(t, h, e, node, services...)
		svc := prefixCluster + suffix(services[0].ID, "")
		for _, damage := range []string{
			c + " -t nat -F", c + " -F", c + " -t nat -F PREROUTING", c + " -t nat -F " + svc, c + " -t nat -D " + svc + " 1",
			c + " -t nat -R " + svc + " 1 -j RETURN", c + " -t nat -A " + svc + " -j RETURN",
			c + " -t nat -I OUTPUT -p tcp -j ACCEPT", c + " -D FORWARD 2",
			c + " -t nat -A POSTROUTING -j SLUICE-POSTROUTING",
			c + " -t nat -N SLUICE-SVC-MINE; " + c + " -t nat -A SLUICE-SVC-MINE -j ACCEPT",
			c + " -t nat -N MINE; " + c + " -t nat -A MINE -j " + svc,
		} {
			if !verifyOn(t, h, e) {
				t.Fatalf("not verified before %s", damage)
			}
			shell(t, h, damage)
			if verifyOn(t, h, e) {
				t.Errorf("not noticed: %s", damage)
			}
			syncOn(t, h, e, node, services...)
			compare(t, save(t, h, v), e, node, services)
			if t.Failed() {
				t.Fatalf("after %s", damage)
			}
		}
		mine := c + " -t nat -A PREROUTING -p tcp --dport 7 -j ACCEPT; " + c + " -I FORWARD -p tcp --dport 7 -j ACCEPT; " + c + " -N OTHER; " + c + " -A OTHER -j DROP"
		shell(t, h, mine)
		if !verifyOn(t, h, e) {
			t.Error("rules of other programs that are not before ours count as damage")
		}
		syncOn(t, h, e, node, services[0])
		if now := save(t, h, v); !strings.Contains(now, "-A OTHER -j DROP") || !strings.Contains(now, "--dport 7") {
			t.Errorf("rules of other programs are gone:\n%s", now)
		}
	})
}

// TestRestart: another process takes over what it finds, and removes what it does not
// want.
func TestRestart(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *testbed.Host, v variant) {
		one, two := plain(v.ipv6, 1, 1, 2), plain(v.ipv6, 2, 3)
		syncOn(t, h, v.engine(), lb.Node{}, one, two)
		e := v.engine()
		syncOn(t, h, e, lb.Node{}, two)
		compare(t, save(t, h, v), e, lb.Node{}, []lb.Service{two})
		if !verifyOn(t, h, e) {
			t.Error("not verified")
		}
	})
}

// TestCleanup: nothing is left but what other programs have.
func TestCleanup(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *testbed.Host, v variant) {
		c := v.command()
		shell(t, h, c+" -t nat -N KUBE-SERVICES; "+c+" -N SLUICE-REFUSE")
		before := save(t, h, v)
		e := v.engine()
		syncOn(t, h, e, lb.Node{}, plain(v.ipv6, 1, 1, 2))
		for range 2 {
			h.DoT(t, func() error { return Cleanup(t.Context()) })
		}
		after := save(t, h, v)
		if strip(after) != strip(before) {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// strip removes the comments of iptables-save, which have the time, and the counters.
func strip(save string) string {
	var out []string
	for line := range strings.Lines(save) {
		if !strings.HasPrefix(line, "#") {
			line, _, _ = strings.Cut(line, " [")
			out = append(out, strings.TrimSpace(line))
		}
	}
	return strings.Join(out, "\n")
}

// TestFailure: after an error the next Sync writes everything, also if nothing has changed since.
func TestFailure(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *testbed.Host, v variant) {
		dir := t.TempDir()
		e := v.engine()
		e.Command = wrapped(t, dir, v, "[ ! -e "+dir+"/fail ] || { echo 'line 3 failed' >&2; exit 1; }")
		one, two := plain(v.ipv6, 1, 1, 2), plain(v.ipv6, 2, 3)
		syncOn(t, h, e, lb.Node{}, one)
		if err := os.WriteFile(filepath.Join(dir, "fail"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		err := h.Do(func() error { return e.Sync(t.Context(), whole(two), lb.Node{}) })
		if err == nil || !strings.Contains(err.Error(), "line 3 failed") {
			t.Errorf("Sync = %v, want what iptables said", err)
		}
		if err := os.Remove(filepath.Join(dir, "fail")); err != nil {
			t.Fatal(err)
		}
		shell(t, h, v.command()+" -t nat -F SLUICE-SERVICES") // which the change does not name
		h.DoT(t, func() error { return e.Sync(t.Context(), lb.Delta{}, lb.Node{}) })
		compare(t, save(t, h, v), e, lb.Node{}, []lb.Service{two})
	})
}
