package balancer

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// The tests in this file are named after bugs of kube-proxy's userspace mode,
// which kept services and endpoints by handling their events one by one.

const second = int64(1e9)

// There the timeout was stored when the state was first created. If the
// endpoints came before the Service it was 10,800 s forever.
func TestBugTimeoutFixedByFirstEvent(t *testing.T) {
	b := balancing(t, echo(1, 2))
	b.Update(mustTable(t, []lb.Service{sticky(echo(1, 2), 10*second)}))
	first := mustPick(t, b, Flow{Client: client, Now: 0})
	if c := mustPick(t, b, Flow{Client: client, Now: 9 * second}); c != first {
		t.Error("client moved within its timeout")
	}
	if c := mustPick(t, b, Flow{Client: client, Now: 19 * second}); c == first {
		t.Error("client did not move after its timeout")
	}
}

// There a change of timeoutSeconds alone was not seen as a change.
func TestBugTimeoutChangeInvisible(t *testing.T) {
	b := balancing(t, sticky(echo(1, 2, 3), 10800*second))
	first := mustPick(t, b, Flow{Client: client, Now: 0})
	b.Update(mustTable(t, []lb.Service{sticky(echo(1, 2, 3), 10*second)}))
	if c := mustPick(t, b, Flow{Client: client, Now: 5 * second}); c != first {
		t.Error("client moved within the new timeout")
	}
	moved := mustPick(t, b, Flow{Client: client, Now: 15 * second})
	if moved == first {
		t.Error("client did not move after the new timeout")
	}
	b.Update(mustTable(t, []lb.Service{sticky(echo(1, 2, 3), 100*second)}))
	if c := mustPick(t, b, Flow{Client: client, Now: 100 * second}); c != moved {
		t.Error("client moved within the longer timeout")
	}
}

// There a Service that was deleted and created again, with no event of its
// endpoints in between, had none.
func TestBugRecreatedServiceHasNoEndpoints(t *testing.T) {
	var b Balancer
	table := mustTable(t, []lb.Service{echo(1, 2)})
	b.Update(table)
	old := mustPick(t, &b, Flow{})
	b.Update(mustTable(t, nil))
	if _, err := b.Pick(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}}); !errors.Is(err, ErrNoService) {
		t.Errorf("deleted service: got %v, want ErrNoService", err)
	}
	b.Update(table)
	mustPick(t, &b, Flow{}).Done(nil)
	if old.Live() {
		t.Error("a choice of the deleted service is live")
	}
	old.Done(nil)
	if s := b.Counters().All()[0]; s.InFlight != 0 || s.Picks != 1 {
		t.Errorf("the new service counts what the old one did: %+v", s)
	}
}

// There endpoints without any port left the old ones in place for a known
// service.
func TestBugEmptyEndpointsLeaveOldOnes(t *testing.T) {
	b := balancing(t, sticky(echo(1, 2), second))
	old := mustPick(t, b, Flow{Client: client})
	b.Update(mustTable(t, []lb.Service{sticky(echo(), second)}))
	if _, err := b.Pick(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}, Client: client}); !errors.Is(err, ErrNoBackend) {
		t.Errorf("got %v, want ErrNoBackend", err)
	}
	if old.Live() {
		t.Error("a choice of a backend that has left is live")
	}
	if n := b.Counters().All()[0].AffinityEntries; n != 0 {
		t.Errorf("%d clients remember it", n)
	}
}

// There the memory of clients had no bound but time.
func TestBugAffinityUnbounded(t *testing.T) {
	const limit, clients = 65536, 70000
	b := balancing(t, sticky(echo(1, 2), 10800*second))
	for i := range clients {
		from := [16]byte{0: 0x20, 1: 0x01, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}
		mustPick(t, b, Flow{Client: netip.AddrFrom16(from), Now: int64(i)}).Done(nil)
	}
	s := b.Counters().All()[0]
	if s.AffinityEntries != limit || s.AffinityEvicted != clients-limit {
		t.Errorf("%d clients remembered and %d evicted, want %d and %d",
			s.AffinityEntries, s.AffinityEvicted, limit, clients-limit)
	}
}

// There a change from None to ClientIP restarted the listener. Here nothing of
// the service is lost by turning affinity on or off, except the memory of
// clients in the latter case.
func TestBugAffinityChangeRestartsService(t *testing.T) {
	b := balancing(t, echo(1, 2, 3))
	one := mustPick(t, b, Flow{Client: client})
	b.Update(mustTable(t, []lb.Service{sticky(echo(1, 2, 3), second)}))
	two := mustPick(t, b, Flow{Client: client})
	if two == one || mustPick(t, b, Flow{Client: client}) != two {
		t.Error("round robin did not go on, or affinity did not begin")
	}
	b.Update(mustTable(t, []lb.Service{echo(1, 2, 3)}))
	if s := b.Counters().All()[0]; s.InFlight != 3 || s.AffinityEntries != 0 || !one.Live() || !two.Live() {
		t.Errorf("in the end: %+v", s)
	}
	if three := mustPick(t, b, Flow{Client: client}); three == one || three == two {
		t.Error("round robin did not go on after affinity")
	}
}
