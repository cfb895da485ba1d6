package report

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/lb"
)

// TestWhys: why a flow has its endpoint is known once it ends, and not of another with the same ends, nor of one before
// that; and as many are known as may be.
func TestWhys(t *testing.T) {
	var w whys
	at := func(port uint16) ends {
		return endsOf(lb.TCP, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port), netip.MustParseAddrPort("10.96.0.1:80"))
	}
	began := time.Now()
	take := func(port uint16, ended time.Time) lb.Why {
		of := at(port)
		e := &flows.Entry{Ended: ended}
		e.Protocol, e.Src, e.Dst = of.protocol, of.client, of.asked
		return w.take(e)
	}
	for i, x := range []struct {
		port  uint16
		chose lb.Why
		ended time.Time
		want  lb.Why
	}{
		{1, lb.ByAffinity, time.Time{}, lb.ByAffinity},
		{1, lb.NotKnown, time.Time{}, lb.NotKnown},
		{2, lb.ByRetry, began.Add(-time.Second), lb.NotKnown}, // the one before
		{2, lb.NotKnown, began.Add(time.Second), lb.ByRetry},
	} {
		if x.chose != lb.NotKnown {
			w.add(at(x.port), chosen{x.chose, began})
		}
		if got := take(x.port, x.ended); got != x.want {
			t.Errorf("%d: the reason is %q, want %q", i, got, x.want)
		}
	}
	mapped := netip.AddrPortFrom(netip.MustParseAddr("::ffff:192.0.2.1"), 3)
	w.add(endsOf(lb.TCP, mapped, netip.MustParseAddrPort("10.96.0.1:80")), chosen{lb.ByHold, began})
	if got := take(3, time.Time{}); got != lb.ByHold {
		t.Errorf("in the other form of its address the reason is %q", got)
	}
	before, after := &Flows{}, &Flows{}
	before.whys.add(at(4), chosen{lb.ByHold, began})
	first := before.Whys()
	before.whys.add(at(5), chosen{lb.ByRoom, began})
	after.SeedWhys(append(first, before.Whys()...))
	after.SeedWhys(before.Whys()) // nothing has come
	w.mu.Lock()
	w.now, w.then = after.whys.now, after.whys.then
	w.mu.Unlock()
	if len(w.now) != 2 || take(4, time.Time{}) != lb.ByHold || take(5, time.Time{}) != lb.ByRoom {
		t.Errorf("another process has %+v", after.whys.now)
	}
	if before.whys.resume(); len(before.Whys()) != 2 {
		t.Error("after a hand-over that has failed the next has less")
	}
	for i := range 3 * manyWhys {
		of := at(uint16(i))
		of.asked = netip.AddrPortFrom(of.asked.Addr(), uint16(i>>16))
		w.add(of, chosen{lb.ByRoom, began})
	}
	if n := len(w.now) + len(w.then); n != 2*manyWhys {
		t.Errorf("%d reasons are known, want %d", n, 2*manyWhys)
	}
}
