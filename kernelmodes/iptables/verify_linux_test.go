package iptables

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/lb"
)

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
		if after := save(t, h, v); strip(after) != strip(before) {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// strip leaves out comments, which have the time, and counters.
func strip(save string) string {
	return regexp.MustCompile(`(?m)^#.*\n| \[.*`).ReplaceAllString(save, "")
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
