package iptables

import (
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// syncOn runs Sync on a host.
func syncOn(t testing.TB, h *testbed.Host, e *Engine, node lb.Node, services ...lb.Service) {
	t.Helper()
	h.DoT(t, func() error { return e.Sync(t.Context(), whole(services...), node) })
}

func verifyOn(t testing.TB, h *testbed.Host, e *Engine) (ok bool) {
	t.Helper()
	h.DoT(t, func() (err error) { ok, err = e.Verify(t.Context()); return err })
	return ok
}

// TestSync: rules come, change and go; nothing is written that is there.
func TestSync(t *testing.T) {
	testbed.EachIPTables(t, func(t *testing.T, h *testbed.Host, v testbed.IPTables) {
		e := engineOf(v)
		before := save(t, h, v)
		syncOn(t, h, e, lb.Node{})
		if now := save(t, h, v); now != before {
			t.Errorf("an engine without Services has written:\n%s", now)
		}
		one, two := plain(v.IPv6, 1, 1, 2), plain(v.IPv6, 2, 3)
		syncOn(t, h, e, lb.Node{}, one, two)
		n := e.Stats().Restores
		syncOn(t, h, e, lb.Node{}, one, two)
		if got := e.Stats().Restores; got != n {
			t.Errorf("the same again ran iptables-restore %d times", got-n)
		}
		for range 2 { // the second asks for the generation alone
			if !verifyOn(t, h, e) {
				t.Error("not verified")
			}
		}
		syncOn(t, h, e, lb.Node{}, two)
		if now := save(t, h, v); strings.Contains(now, "default/s1") || !strings.Contains(now, "default/s2") {
			t.Errorf("after a Service has gone:\n%s", now)
		}
		if !verifyOn(t, h, e) {
			t.Error("not verified after a change")
		}
		syncOn(t, h, engineOf(v), lb.Node{}) // another process
		if now := save(t, h, v); strings.Contains(now, "SLUICE-S") {
			t.Errorf("after a process without Services has started:\n%s", now)
		}
	})
}

// TestSCTP: a client that begins its association anew, from the same port, reaches an endpoint of the Service.
func TestSCTP(t *testing.T) {
	engines := [2]*Engine{engineOf(testbed.IPTables{}), engineOf(testbed.IPTables{IPv6: true})}
	lab.New(t, testbed.Config{Pods: 2}, func(family int) lab.Engine { return engines[family] }).RestartSCTP()
}
