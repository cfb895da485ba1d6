package balancer

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// silentUDP returns a Balancer of two backends of a UDP service, of which the first one has been ejected for silence,
// and has clients ask both once.
func silentUDP(t *testing.T) (b *Balancer, id lb.ID, events *[]lb.Ejection, ask func(now int64)) {
	s := echo(1, 2)
	s.Protocol, s.Policies = lb.UDP, &lb.Policies{UDPResponses: 1}
	b, events = ejecting(t, s)
	client := netip.MustParseAddr("10.9.0.1")
	ask = func(now int64) {
		for range 2 {
			c := mustPick(t, b, Flow{Frontend: lb.Frontend{Protocol: lb.UDP, Addr: front}})
			if c.Backend() == address(1) {
				client = client.Next()
				c.NotAnswered(errRefused, client, now)
			} else {
				c.Answered()
			}
			c.Done(nil)
		}
	}
	for range 5 {
		ask(0)
	}
	if len(*events) != 1 {
		t.Fatalf("%+v, want one ejection", *events)
	}
	return b, s.ID, events, ask
}

// A silent backend that returns without a trial, and is silent again, stays out for the longest time: each return costs
// clients what they have sent.
func TestSilentReturnsSeldom(t *testing.T) {
	b, _, events, ask := silentUDP(t)
	b.Health().Trials(30*second, 9)
	ask(30 * second)
	ask(30 * second)
	if all := *events; len(all) != 3 || !all[1].Returned || all[2].Time != lb.DefaultOutlier.MaxEjectionTime {
		t.Errorf("%+v", all)
	}
}

// A backend with a check by the protocol of its service returns by that alone; a check by another protocol shows
// nothing, and one that there is no more decides nothing.
func TestCheckDecidesReturn(t *testing.T) {
	b, id, events, _ := silentUDP(t)
	b.Health().Checked(id, address(1), lb.TCP, nil, second)
	if len(*events) != 1 {
		t.Errorf("a check by TCP readmits: %+v", *events)
	}
	b.Health().Checked(id, address(1), lb.UDP, errRefused, 2*second)
	for now := 30 * second; now < 300*second; now += 30 * second {
		if _, next := b.Health().Trials(now, 9); next <= now || b.Health().Stats().Active != 1 {
			t.Fatalf("next look at %d, %+v", next, b.Health().Stats())
		}
	}
	b.Health().Checked(id, address(1), lb.UDP, nil, 300*second)
	if o := b.Health().Stats(); o.Active != 0 || b.Health().Failing() != 0 || !(*events)[2].Returned {
		t.Errorf("%+v, %+v", o, *events)
	}

	b, id, events, _ = silentUDP(t)
	b.Health().Checked(id, address(1), lb.UDP, errRefused, second)
	b.Health().Checked(id, address(1), 0, nil, 2*second)
	if o := b.Health().Stats(); o.Active != 1 || b.Health().Failing() != 0 {
		t.Errorf("without a check any more: %+v", o)
	}
	if _, next := b.Health().Trials(30*second, 9); next != 0 || b.Health().Stats().Active != 0 {
		t.Errorf("without a check any more it does not return by time: %+v", *events)
	}
}

// A UDP flow does not stay at a bad backend, and one that is remembered does not go back there, unless all are bad.
func TestBadIsNotLive(t *testing.T) {
	for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
		s := echo(1, 2)
		s.Protocol = protocol
		b, _ := ejecting(t, s)
		f := Flow{Frontend: lb.Frontend{Protocol: protocol, Addr: front}}
		one, other := mustPick(t, b, f), mustPick(t, b, f)
		one.Remember(&Conversation{Key: 7})
		b.Health().Checked(s.ID, one.Backend(), lb.TCP, errRefused, 0)
		_, _, recalled := b.Recall(f, 7)
		if udp := protocol == lb.UDP; one.Live() == udp || !other.Live() || recalled {
			t.Errorf("%s: live %v and %v, recalled %v", protocol, one.Live(), other.Live(), recalled)
		}
		b.Health().Checked(s.ID, other.Backend(), lb.TCP, errRefused, 0)
		if !one.Live() || !other.Live() {
			t.Errorf("%s: if all fail, live %v and %v", protocol, one.Live(), other.Live())
		}
	}
}
