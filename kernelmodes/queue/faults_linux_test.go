package queue

import (
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// follows has a node follow so many connections to an address in a quarter of a second, from the next Sync on.
func (n *node) follows(count uint32) {
	n.following.hearing.mu.Lock() // who reads it holds that
	n.Ask.Follow = count
	n.following.hearing.mu.Unlock()
	for _, e := range n.Server.Engines {
		e.Ask.Follow = count
	}
}

// TestFollow: of many connections some are followed. The others have exact turns as these have, conntrack says nothing
// of them, and when it matters what is in flight they are found. Those that are logged are all followed.
func TestFollow(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(lab.Family(v6), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, testbed.Config{Pods: 3})
			n.follows(1)
			s := n.echoing(lb.TCP, v6, lb.Policies{})
			n.Sync(s)
			if !n.Verify() {
				t.Error("Verify finds something out of place")
			}
			n.suspect()
			testbed.Check(t, n.following.events.Everything())
			before := n.Stats().Flows.Events
			all := n.open(&s, 30)
			for n.Stats().Flows.Unfollowed == 0 && len(all) < 300 {
				all = append(all, n.open(&s, 3)...)
			}
			got := n.Stats()
			followed := uint64(len(all)) - got.Flows.Unfollowed
			if got.Flows.Unfollowed == 0 || followed == 0 || got.Chosen != uint64(len(all)) {
				t.Errorf("%+v, want some of %d followed, and others not", got, len(all))
			}
			testbed.Eventually(t, "answers are heard of", func() bool { return n.Stats().Flows.Answered == followed })
			n.awaits(&s, 0, 0, 0)
			if got := n.Stats().Flows; got.Known != 0 || got.Events == before || got.Events-before > followed {
				t.Errorf("%+v, want events of %d at most, after %d, and none known", got, followed, before)
			}
			for pod := range n.Pods {
				if got := len(n.at(all, &s, pod)); got != len(all)/3 {
					t.Errorf("pod %d has %d of %d connections, want a third", pod, got, len(all))
				}
			}
			testbed.Check(t, n.following.events.All())

			s.Policies = &lb.Policies{AccessLog: "all"}
			n.Sync(s)
			got = n.Stats()
			n.open(&s, 30)
			if now := n.Stats(); now.Flows.Unfollowed != got.Flows.Unfollowed || now.Chosen != got.Chosen+30 {
				t.Errorf("%+v after %+v, want all followed that are logged", now, got)
			}
			s.Policies = &lb.Policies{Scheduler: "lc"}
			n.Sync(s)
			n.Read()
			each := uint64(len(all)+30) / 3
			n.awaits(&s, each, each, each)
		})
	}
}

// TestSilentToMany: of three endpoints one drops packets, and most connections are not followed: each client waits for
// one retransmission of its own, and those that come next are followed.
func TestSilentToMany(t *testing.T) { // not beside others: the second retransmission comes after three seconds
	n, s, _ := failing(t, false, false, lb.Policies{})
	n.follows(3)
	n.Sync(s)
	const clients = 90
	var all sync.WaitGroup
	var waited [clients]time.Duration
	stalled := stalls()
	for i := range clients {
		all.Go(func() {
			begun := time.Now()
			if _, err := n.dial(&s, testbed.Patience); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
			waited[i] = time.Since(begun)
		})
	}
	all.Wait()
	once := 1900 * time.Millisecond
	if d := stalled(); d > 100*time.Millisecond { // there are 0.3 s until the first retransmission
		t.Logf("this machine stood still for %v: a client may send again twice", d)
		once += 2 * time.Second
	}
	if longest := slices.Max(waited[:]); longest > once {
		t.Errorf("a client has waited for %v, want %v at the most", longest, once)
	}
	got := n.Stats().Flows
	if got.Unfollowed == 0 || got.Silent < 5 || got.Retried != got.Silent {
		t.Errorf("%+v, want some unfollowed, and all retried that met the endpoint", got)
	}
	n.open(&s, 30)
	again := n.Stats().Flows
	if again.Unfollowed != got.Unfollowed || again.Silent > got.Silent+5 || n.Balancer.OutlierStats().Active != 1 {
		t.Errorf("%+v after %+v, %+v; want all followed, and the endpoint ejected after five", again, got,
			n.Balancer.OutlierStats())
	}
}

// stalls returns a function that returns for how long at a time nothing has run here since.
func stalls() (longest func() time.Duration) {
	const every = 5 * time.Millisecond
	ticks, stop, most := time.NewTicker(every), make(chan struct{}), make(chan time.Duration)
	go func() {
		defer ticks.Stop()
		for longest, last := time.Duration(0), time.Now(); ; last = time.Now() {
			select {
			case <-ticks.C:
				longest = max(longest, time.Since(last)-every)
			case <-stop:
				most <- longest
				return
			}
		}
	}()
	return func() time.Duration { close(stop); return <-most }
}

// TestDrained: a connection that was not followed ends when an operator has drained its endpoint and its entry was
// deleted, of which conntrack says nothing; others go on.
func TestDrained(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 4})
	n.follows(1)
	s := n.echoing(lb.TCP, false, lb.Policies{})
	s.Backends = s.Backends[:3]
	n.Sync(s)
	var all []net.Conn
	for len(all) < 6 || n.Stats().Flows.Unfollowed == 0 && len(all) < 300 {
		c, err := n.Pods[3].Dial(t.Context(), "tcp", s.Addresses[0].Addr.String()) // what is masqueraded gets another port
		testbed.Check(t, err)
		defer c.Close()
		(&testbed.Talker{T: t, Conn: c}).Echoes()
		all = append(all, c)
	}
	testbed.Eventually(t, "answers are heard of", func() bool {
		f := n.Stats().Flows
		return f.Answered+f.Unfollowed == uint64(len(all)) && f.Known == 0
	})
	left := n.at(all, &s, 0)
	drains := lb.NewDrains([]lb.Drain{{Addr: s.Backends[0].Addr, Deadline: n.Now()}}, nil)
	n.Balancer.Drain(drains)
	n.Sync(*drains.Mark(&s, n.Now()))
	testbed.Check(t, n.following.events.Only(nil))
	n.Node.Run(t, "conntrack", "-D", "-p", "tcp")
	for _, c := range all {
		if !slices.Contains(left, c) {
			(&testbed.Talker{T: t, Conn: c}).Echoes()
			continue
		}
		testbed.Check(t, c.SetDeadline(time.Now().Add(testbed.Patience)))
		_, err := c.Write([]byte("?"))
		testbed.Check(t, err)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection of the drained endpoint: %v, want a reset", err)
		}
	}
	if len(left) != len(all)/3 || n.Stats().Flows.Unfollowed == 0 {
		t.Errorf("%d of %d connections were at the first endpoint, %+v", len(left), len(all), n.Stats().Flows)
	}
}

// TestFaults: a failure is known for a while, by the address that was asked.
func TestFaults(t *testing.T) {
	var f faults
	one := keyOf(lb.TCP, lab.At(lab.VIP(false, 1), 1000), lab.At(lab.VIP(false, 2), 80))
	same, other := one, one
	same.clientPort, other.askedPort = 1001, 81
	const begin = 1 << 32 * millisecond // the count begins anew
	if f.last(&one, begin) || !f.note(&one, begin) || !f.note(&same, begin+faultBegins) {
		t.Error("a failure is known before it was, or others are not among the first")
	}
	if f.note(&same, begin+faultLasts) || !f.last(&same, begin+2*faultLasts) {
		t.Error("one that comes later is among the first, or forgotten too soon")
	}
	if f.last(&other, begin+faultLasts) && f.at(&one) != f.at(&other) {
		t.Error("another address has failed, too")
	}
	if f.last(&one, begin+2*faultLasts+millisecond) || !f.note(&one, begin+2*faultLasts+millisecond) {
		t.Error("it is known for too long")
	}
}

// TestTries: of the connections to an endpoint one is followed every few milliseconds.
func TestTries(t *testing.T) {
	var of tries
	followed := 0
	for now := int64(0); now < 10*tryEvery; now += millisecond {
		for nth := range uint32(2) {
			if of.due(nth, now+tryEvery) {
				followed++
			}
		}
	}
	if followed != 20 {
		t.Errorf("%d are followed, want each tenth of 200", followed)
	}
}
