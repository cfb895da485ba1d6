package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// TestPace: two writings at once after quiet, then one in each period; quiet is not
// saved up beyond that, and no period means no bound.
func TestPace(t *testing.T) {
	p := pace{period: time.Second}
	begin := time.Unix(1_000_000, 0)
	for _, step := range []struct{ at, wait time.Duration }{
		{0, 0}, {0, 0}, {0, time.Second}, {400 * time.Millisecond, 600 * time.Millisecond},
		{time.Second, 0}, {1500 * time.Millisecond, 500 * time.Millisecond}, {2 * time.Second, 0},
		{3 * time.Second, 0}, {4500 * time.Millisecond, 0}, {4500 * time.Millisecond, 500 * time.Millisecond},
		{time.Hour, 0}, {time.Hour, 0}, {time.Hour, time.Second},
	} {
		now := begin.Add(step.at)
		wait := p.wait(now)
		if wait != step.wait {
			t.Errorf("at %v: wait %v, want %v", step.at, wait, step.wait)
		}
		if wait == 0 {
			p.note(now)
		}
	}
	p = pace{}
	for range 5 {
		if wait := p.wait(begin); wait != 0 {
			t.Errorf("without a period: wait %v", wait)
		}
		p.note(begin)
	}
}

// TestLooks: after quiet looks follow each other at once, however long they take, and then they take a twentieth of the
// time. Time is synctest's.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, k, _, _ := withEngines(t)
		a.VerifyEvery = time.Hour
		mustApply(t, a, service(lb.TCP, "web", 1, 1))
		const takes = 240 * time.Millisecond       // to write the rules of many Services
		k.moved = func() { time.Sleep(takes / 3) } // for each family and path that is written
		stop := running(t, a)
		repaired := func() (after time.Duration) {
			t.Helper()
			begin, repairs := time.Now(), a.Status().Repairs
			k.intact = false
			for a.Suspect(); a.Status().Repairs == repairs; {
				time.Sleep(time.Millisecond) // of synctest
				if time.Since(begin) > time.Minute {
					t.Fatal("not repaired")
				}
			}
			k.intact = true
			return time.Since(begin)
		}
		for i := range 5 {
			if after := repaired(); after > takes+lookPause+time.Millisecond {
				t.Errorf("damage %d is repaired after %v", i, after)
			}
		}
		for range 20 {
			repaired()
		}
		if after := repaired(); after < (lookShare-1)*takes || after > (lookShare+1)*takes {
			t.Errorf("what is always damaged is repaired after %v", after)
		}
		stop()
	})
}

// TestLooksGiveWay: a change does not wait for a look, which is made anew after it, and in the end is made although
// changes never cease. Time is synctest's.
func TestLooksGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newAgent(t)
		a.VerifyEvery = time.Hour
		const takes = 400 * time.Millisecond // to read the rules of many Services
		var given, taken int
		a.Families[0].Steer.Verify = func(ctx context.Context) (bool, error) {
			select {
			case <-ctx.Done():
				given++
				return false, ctx.Err()
			case <-time.After(takes):
				taken++
				return true, nil
			}
		}
		mustApply(t, a, service(lb.TCP, "web", 1, 1))
		applied := make(chan struct{}, 1)
		a.Observe = func(Attempt) { applied <- struct{}{} }
		stop := running(t, a)
		change := func(n int) (after time.Duration) {
			t.Helper()
			begin := time.Now()
			a.Submit(Desired{Services: lists.Of([]*lb.Service{service(lb.TCP, "web", 1, byte(1+n%2))})})
			<-applied
			return time.Since(begin)
		}
		a.Suspect()
		for n := range mostGiven {
			time.Sleep(lookPause + takes/2) // in the midst of the next look
			if after := change(n + 1); after > 0 || given != n+1 {
				t.Errorf("change %d waits for %v, and %d looks have given way", n, after, given)
			}
		}
		time.Sleep(lookPause + takes/2) // of synctest
		if after := change(0); after == 0 || after > takes || taken != 1 || given != mostGiven {
			t.Errorf("after %d looks have given way a change waits for %v, and %d are taken", given, after, taken)
		}
		time.Sleep(time.Minute) // of synctest
		if taken != 1 {
			t.Errorf("%d looks are taken when there is nothing to look for", taken)
		}
		stop()
	})
}

// TestWriteEvery: what needs rules waits until rules may be written, and comes into
// force together; what needs none is in force at once. Time is synctest's.
func TestWriteEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, k, ipt, _ := withEngines(t)
		a.WriteEvery, a.VerifyEvery = 10*time.Second, time.Hour
		web := service(lb.TCP, "web", 1, 1)
		mustApply(t, a, web)
		stop := running(t, a)
		written := func() int { return len(k.steered) + len(ipt.made) }
		submit := func(services ...*lb.Service) {
			a.Submit(Desired{Services: lists.Of(services), Changes: Changes{Services: 1}})
			synctest.Wait()
		}
		expect := func(what string, frontends int, putOff uint64) {
			t.Helper()
			got := written() // first: Status is what orders this before the next writing
			if s := a.Status(); got != frontends || s.Deferred != putOff || s.Healthy(time.Now()) != true {
				t.Errorf("%s: %d frontends are written and %d changes were put off, want %d and %d: %+v", what, got, s.Deferred, frontends, putOff, s)
			}
		}
		two, three := service(lb.TCP, "two", 2, 2), requesting(service(lb.TCP, "three", 3, 3), "iptables")
		submit(web, two)
		expect("the first change after quiet", 2, 0)
		submit(web, two, three)
		expect("the second, for an engine", 3, 0)

		for i := range byte(3) { // a burst
			submit(web, two, three, service(lb.UDP, "dns", 4+i, 4))
			expect("too soon", 3, uint64(i)+1)
		}
		if s := a.Status(); s.QueuedSince.IsZero() || s.ServicesPending != 3 {
			t.Errorf("while a change waits: %+v", s)
		}
		if len(k.steered) != 2 || len(k.open) != 0 {
			t.Errorf("%d steered, %d proxy ports open", len(k.steered), len(k.open))
		}
		dns := service(lb.UDP, "dns", 6, 4)
		web = service(lb.TCP, "web", 1, 7)
		submit(web, two, three, dns)
		if s, _ := k.lb.Table().Service(web.ID); s.Backends[0] != web.Backends[0] {
			t.Errorf("other endpoints wait with the rules: %v", s.Backends)
		}
		expect("other endpoints beside a change that waits", 3, 4)

		time.Sleep(10 * time.Second) // of synctest
		synctest.Wait()
		expect("the time has come", 4, 4)
		if s := a.Status(); !s.QueuedSince.IsZero() || s.ServicesPending != 0 || len(k.open) != 1 {
			t.Errorf("after that: %+v, %d proxy ports", s, len(k.open))
		}
		for i := range byte(5) {
			web = service(lb.TCP, "web", 1, 10+i)
			submit(web, two, three, dns)
		}
		expect("other endpoints alone, in user space", 4, 4)
		if s := a.Status(); !s.QueuedSince.IsZero() {
			t.Errorf("other endpoints wait: %+v", s)
		}
		submit(web, two, requesting(service(lb.TCP, "three", 3, 9), "iptables"), dns)
		expect("other endpoints of a Service in the kernel", 4, 5)
		submit(web, two, three, dns)
		if s := a.Status(); !s.QueuedSince.IsZero() {
			t.Errorf("a change that was taken back waits: %+v", s)
		}
		stop()
	})
}

// TestHealthyWhileBusy: changes that come without a pause, and are applied in time, do not
// make the agent unhealthy, though one waits whenever one is applied. Time is synctest's.
func TestHealthyWhileBusy(t *testing.T) {
	for _, mode := range []Path{Userspace, IPTables} {
		synctest.Test(t, func(t *testing.T) {
			a, k, _, _ := withEngines(t)
			a.Mode, a.WriteEvery, a.VerifyEvery = mode, time.Second, 30*time.Second
			k.moved = func() { time.Sleep(100 * time.Millisecond) } // what iptables-restore takes
			stop := running(t, a)
			for begin, i := time.Now(), byte(0); time.Since(begin) < 3*time.Minute; i++ {
				a.Submit(Desired{Services: lists.Of([]*lb.Service{service(lb.TCP, "web", 1, 1+i%200), service(lb.TCP, "x", 2+i%200, 1)})})
				time.Sleep(50 * time.Millisecond) // of synctest
				if s := a.Status(); !s.Healthy(time.Now()) || s.Failures > 0 {
					t.Fatalf("%s: unhealthy after %v: %+v", mode, time.Since(begin), s)
				}
			}
			if s := a.Status(); s.Applied < 170 {
				t.Errorf("%s: %d changes were applied, want one a second", mode, s.Applied)
			}
			stop()
		})
	}
}
