package agent

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// TestEndpointsGo: while endpoints change all the time, an engine loses one that is gone within WriteEvery and one
// writing, and user space within patience. Time is synctest's.
func TestEndpointsGo(t *testing.T) {
	for _, test := range []struct {
		name    string
		takes   time.Duration // to write
		fails   time.Duration // the engine works for so long, then it fails for as long; 0: it never fails
		address bool          // each change is one of the Service's address, too
	}{
		{name: "fast"},
		{name: "within patience", takes: patience - time.Millisecond},
		{name: "slow", takes: 4 * patience},
		{name: "slower than the pace", takes: 1400 * time.Millisecond},
		{name: "fails", fails: 4 * time.Second},
		{name: "fails late", takes: 4 * patience, fails: 4 * time.Second},
		{name: "other addresses", address: true},
		{name: "slow, other addresses", takes: 1400 * time.Millisecond, address: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { endpointsGo(t, test.takes, test.fails, test.address) })
		})
	}
}

func endpointsGo(t *testing.T, takes, fails time.Duration, address bool) {
	const every, step = time.Second, 70 * time.Millisecond
	a, k, ipt, _ := withEngines(t)
	a.WriteEvery, a.VerifyEvery, ipt.takes = every, time.Hour, takes
	web := func(i int) *lb.Service {
		at := byte(1)
		if address {
			at += byte(i % 100)
		}
		return requesting(service(lb.TCP, "web", at, byte(i%250)), "iptables")
	}
	mustApply(t, a, web(0))
	defer running(t, a)()
	gone := make(map[lb.Backend]time.Time)
	expect := func(where string, s *lb.Service, most time.Duration) {
		t.Helper()
		if at, is := gone[s.Backends[0]]; is && time.Since(at) > most {
			t.Fatalf("%s has %s, which is gone for %v", where, s.Backends[0].Addr, time.Since(at))
		}
	}
	inKernel := 0
	for i, begin := 1, time.Now(); time.Since(begin) < 30*time.Second; i++ {
		ipt.mu.Lock()
		if ipt.fail = nil; fails > 0 && time.Since(begin)/fails%2 == 1 {
			ipt.fail = errors.New("no memory")
		}
		ipt.mu.Unlock()
		was, now := web(i-1), web(i)
		gone[was.Backends[0]] = time.Now()
		delete(gone, now.Backends[0])
		a.Submit(Desired{Services: lists.Of([]*lb.Service{now})})
		time.Sleep(step) // of synctest
		synctest.Wait()
		served, _ := k.lb.Table().Service(now.ID)
		expect("user space", served, patience+step)
		if choice, _ := a.Choice(now.ID); choice.Path != IPTables {
			continue
		}
		inKernel++
		ipt.mu.Lock()
		made := ipt.made[now.ID]
		ipt.mu.Unlock()
		expect("the engine", made, max(every, takes)+takes+step)
	}
	if inKernel < 100 {
		t.Errorf("the engine had the Service at %d moments", inKernel)
	}
}
