package nfqueue

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// here returns the cores that the calling thread may run on.
func here(t *testing.T) (set unix.CPUSet) {
	testbed.Check(t, unix.SchedGetaffinity(0, &set))
	return set
}

// TestCores: packets are decided on the core that has sent them, and by any that has time when there are too many.
func TestCores(t *testing.T) {
	h := testbed.NewHostsT(t, "host")[0]
	addr := loopback(false)
	h.DoT(t, func() error { rules(t, false, nil); return nil })
	where, sent := make(chan unix.CPUSet, 1000), make(chan struct{}, 1000)
	var q *Queues
	h.DoT(t, func() (err error) {
		q, err = Open(7, 2, func(*Packet) Verdict {
			<-sent
			where <- here(t)
			return Verdict{Action: Drop, Settled: true}
		}, nil)
		return err
	})
	defer func() { testbed.Check(t, q.Close()) }()
	port := uint16(20000)
	send := func() {
		t.Helper()
		c, err := h.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(addr, port).String())
		testbed.Check(t, err)
		defer c.Close()
		port++
		_, _ = c.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 80))) // EPERM: it was dropped
	}
	runtime.LockOSThread() // the thread ends with the test: it has one core at a time, and so one queue
	all := here(t)
	for core := range mostCores {
		if !all.IsSet(core) {
			continue
		}
		var one unix.CPUSet
		one.Set(core)
		testbed.Check(t, unix.SchedSetaffinity(0, &one))
		var got unix.CPUSet
		for range 2 * mostScore {
			sent <- struct{}{}
			send()
			got = <-where
		}
		if !got.IsSet(core) || got.Count() > (all.Count()+1)/2 && all.Count() > 1 {
			t.Errorf("packets of core %d are decided on %v", core, got)
		}
	}
	for range 3 * atOnce {
		send()
	}
	anywhere := false
	for range 3 * atOnce {
		sent <- struct{}{}
		anywhere = anywhere || <-where == all
	}
	if !anywhere {
		t.Errorf("too many packets are decided on their core alone, of %d", all.Count())
	}
}

// TestHome: a queue runs on its own cores while most verdicts are settled and it is not behind.
func TestHome(t *testing.T) {
	runtime.LockOSThread() // the thread ends with the test
	all := here(t)
	if all.Count() < 2 {
		t.Skip("this machine has one core")
	}
	c, err := coresOf(0, 1, new(idleTimes))
	testbed.Check(t, err)
	if c.moves {
		t.Error("the only queue has some of the cores")
	}
	for nth := 0; !c.moves; nth++ {
		c, err = coresOf(nth, 2, new(idleTimes))
		testbed.Check(t, err)
	}
	now := time.Now()
	wants := func(when string, want unix.CPUSet) {
		t.Helper()
		if got := here(t); got != want {
			t.Errorf("%s it runs on %v, want %v", when, got, want)
		}
	}
	c.enter()
	c.looked = now.Add(time.Hour) // it is not looked whether they are full of work
	c.decided(mostScore-1, 0, false, now)
	wants("first", all)
	c.decided(1, 0, false, now)
	wants("when verdicts are settled", c.own)
	c.decided(mostScore, 2*mostScore, false, now)
	wants("when some are not", c.own)
	c.decided(0, 2*mostScore, false, now)
	wants("when most are not", all)
	c.decided(2*mostScore, 0, true, now)
	wants("when it is behind", all)
	c.decided(1, 0, false, now.Add(elsewhere))
	wants("a moment later", all)
	c.decided(1, 0, false, now.Add(2*elsewhere))
	wants("later", c.own)
	c.decided(1, 0, false, now.Add(3*elsewhere))
	wants("still later", c.own)
	c.full = true
	c.decided(1, 0, false, now.Add(3*elsewhere))
	wants("when they are full of work", all)
	c.decided(1, 0, false, now.Add(3*elsewhere+2*relief))
	wants("when they had some time", c.own)
	c.decided(1, 0, true, now.Add(3*elsewhere+2*relief))
	wants("when it is behind there", all)
}

// TestCoreIsFull: a core that computes all the while is full of work.
func TestCoreIsFull(t *testing.T) {
	runtime.LockOSThread() // the thread ends with the test
	all := here(t)
	c := cores{times: new(idleTimes)}
	for core := 0; c.own.Count() == 0; core++ {
		if all.IsSet(core) {
			c.own.Set(core)
		}
	}
	testbed.Check(t, unix.SchedSetaffinity(0, &c.own))
	c.look(time.Now())
	for begun := c.looked; time.Since(begun) < 3*lookEvery; {
		continue
	}
	if c.look(time.Now()); !c.full || c.idle == 0 {
		t.Errorf("the core is not full: it was idle for %d ticks", c.idle)
	}
	c.times.parse([]byte("intr 1\n"))
	if c.look(c.times.read); c.full {
		t.Error("it is full though that is not known")
	}
}
