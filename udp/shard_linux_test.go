package udp

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// TestLeaveInStretches: after a change of the table the flows whose backend is gone leave
// it some at a time, every one whatever happens to it and to others in between, and also
// after another change.
func TestLeaveInStretches(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var backends []netip.AddrPort
	for i := range byte(3) {
		backends = append(backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1 + i}), 9))
	}
	p := startProxy(t, 1, nil, backends...)
	sh := p.shards[0]
	ln := sh.newListener(p.front)
	now := eventloop.Now()
	made := 0
	add := func() {
		c, err := p.LB.Pick(balancer.Flow{Frontend: p.front, Client: netip.MustParseAddr("192.0.2.1"), Now: now})
		if err != nil {
			t.Error(err)
			return
		}
		made++ // a descriptor that is not open
		client := netip.AddrFrom4([4]byte{10, 0, byte(made >> 8), byte(made)})
		ln.keep(&flow{ln: ln, key: flowKey{client: netip.AddrPortFrom(client, 53)},
			choice: c, active: now, loopFlow: loopFlow{fd: 1<<20 + made}}, lb.Name{Namespace: "default", Name: "s1"})
	}
	// update puts these backends into the table and returns how many flows left at once.
	update := func(list ...netip.AddrPort) uint64 {
		table, err := lb.NewTable([]*lb.Service{service(1, list...)}, lb.Node{})
		if err != nil {
			t.Error(err)
		}
		p.LB.Update(table)
		before := sh.count.Moved.Load()
		sh.leaveGone()
		return sh.count.Moved.Load() - before
	}
	one := func() *flow {
		f := sh.ages.first
		for range r.IntN(sh.ages.len) {
			f = f.links[byAge].next
		}
		return f
	}
	stays := func(when string) {
		n := 0
		for f := sh.ages.first; f != nil; f = f.links[byAge].next {
			if f.leaving == 0 && !f.choice.Live() {
				n++
			}
		}
		if n != 0 {
			t.Errorf("%s: %d flows of %d have not left", when, n, sh.ages.len)
		}
	}
	onLoop(t, sh, func() {
		for range 6 * perWalk {
			add()
		}
		if n := update(backends[1:]...); n == 0 || n > perWalk || sh.ages.ahead == nil {
			t.Errorf("%d flows have left at once, want %d at most", n, perWalk)
		}
		walks := 1
		for ; sh.rest.Active(); walks++ {
			for range 50 {
				one().touch(now, false)
				one().close()
				add()
			}
			if walks == 3 && update(backends[2]) != 0 {
				t.Error("a second walk has started while one is under way")
			}
			if f := sh.ages.ahead; f != nil {
				f.close()
			}
			sh.loop.StopTimer(&sh.rest)
			sh.Expire(&sh.rest)
		}
		if walks < 12 || walks > 14 {
			t.Errorf("%d stretches for two walks over %d flows", walks, 6*perWalk)
		}
		stays("after two changes")
	})
	p.setBackends(backends[0])
	eventually(t, "all flows have left by themselves", func() bool {
		walking := true
		onLoop(t, sh, func() { walking = sh.scanning.Load() || sh.rest.Active() })
		return !walking
	})
	onLoop(t, sh, func() {
		stays("after the third change")
		ln.closeFlows()
		if sh.ages.first != nil || sh.ages.last != nil || sh.ages.len != 0 {
			t.Error("the order of age is not empty")
		}
	})
}
