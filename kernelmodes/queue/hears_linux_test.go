package queue

import (
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestHears: conntrack makes no events, not for the node's flows either, while no Service needs them and no endpoint has
// failed. They are heard from before the rules of one that does, for as long as it is there, and for a while after a
// failure.
func TestHears(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 1})
	tcp, udp := n.echoing(lb.TCP, false, lb.Policies{}), n.echoing(lb.UDP, true, lb.Policies{})
	udp.Name = "udp"
	n.Sync(tcp, udp)
	// hears checks that events are heard, or not, of connections that are opened and have their entry deleted.
	hears := func(want bool) {
		t.Helper()
		before := n.Stats()
		testbed.Check(t, n.open(&tcp, 1)[0].Close())
		lab.Ask(n.Client, lb.UDP, udp.Addresses[0].Addr)
		n.Node.Run(t, "conntrack", "-D", "-p", "udp", "-f", "ipv6")
		testbed.Eventually(t, "the answer is known", func() bool { return n.Stats().Flows.Answered > before.Flows.Answered })
		if want { // those of the answer of TCP and of the end of UDP, so that none comes later
			testbed.Eventually(t, "both are heard of", func() bool { return n.Stats().Flows.Events >= before.Flows.Events+2 })
		}
		if got := n.Stats(); (got.Flows.Events > before.Flows.Events) != want || n.following.hearing.on.Load() != want {
			t.Errorf("%d events, want some: %v", got.Flows.Events-before.Flows.Events, want)
		}
		if got := n.Stats().Flows.Known; got != 0 {
			t.Errorf("%d flows are known, want none", got)
		}
	}
	hears(false)
	for _, x := range []struct {
		lb.Protocol
		lb.Policies
	}{
		{lb.TCP, lb.Policies{Scheduler: "lc"}}, {lb.TCP, lb.Policies{MaxConnections: 1}},
		{lb.TCP, lb.Policies{AccessLog: "all"}}, {lb.TCP, lb.Policies{RetryRefused: lb.On}},
		{lb.UDP, lb.Policies{UDPResponses: 1}}, {lb.SCTP, lb.Policies{}},
	} {
		needs := tcp
		needs.Name, needs.Protocol, needs.Policies = "needs", x.Protocol, &x.Policies
		needs.Addresses = []lb.Address{{Addr: lab.At(lab.VIP(false, 7), 80)}}
		n.Sync(tcp, udp, needs)
		if !n.following.hearing.on.Load() {
			t.Errorf("%+v: no events are heard", x)
		}
		n.Sync(tcp, udp)
		if n.following.hearing.on.Load() {
			t.Errorf("%+v: events are heard without it", x)
		}
	}
	hears(false)
	n.suspect()
	hears(true)
	n.following.hearing.mu.Lock()
	n.following.hearing.until = n.Now()
	n.following.hearing.mu.Unlock()
	n.unsuspect()
	hears(false)
}
