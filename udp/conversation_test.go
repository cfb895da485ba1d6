package udp

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// seen are three backends that answer with their number and the port that they see.
func seen(t *testing.T) (addrs []netip.AddrPort) {
	for i := range 3 {
		b := listenUDP(t, "127.0.0.1:0").serve(t, func(_ []byte, from netip.AddrPort) []byte {
			return fmt.Appendf(nil, "%d %d", i, from.Port())
		})
		addrs = append(addrs, b.addr)
	}
	return addrs
}

// By default a client whose flow had to make room goes on at its backend each time. With an idle timeout of its own a
// flow is forgotten, as it always was.
func TestConversationGoesOn(t *testing.T) {
	for _, idle := range []time.Duration{0, time.Minute} {
		p := startProxy(t, 1, func(s *Server) { s.MaxFlows, s.IdleTimeout = 1, idle }, seen(t)...)
		const rounds = 5
		clients := dialAll(t, p.addr, 4)
		first, moved := make([]byte, len(clients)), 0
		for range rounds {
			for i, c := range clients {
				switch got := c.ask("?")[0]; {
				case first[i] == 0:
					first[i] = got
				case got != first[i]:
					moved++
				}
			}
		}
		s, again := p.Stats(), uint64((rounds-1)*len(clients))
		switch {
		case s.Evicted != again+uint64(len(clients))-1 || s.Active != 1:
			t.Errorf("stats = %+v, want each flow to have evicted another", s)
		case idle == 0 && (s.Resumed != again || moved != 0):
			t.Errorf("%d of %d flows resumed, %d of them at another backend", s.Resumed, again, moved)
		case idle > 0 && (s.Resumed != 0 || moved == 0):
			t.Errorf("%d flows resumed, %d moved, want none and some", s.Resumed, moved)
		}
	}
}

// Draining waits for clients that are active, not for those that may come back.
func TestShutdownIsBrief(t *testing.T) {
	p := startProxy(t, 2, func(s *Server) { s.IdleTimeout = 0 }, seen(t)...)
	for _, c := range dialAll(t, p.addr, 10) {
		for range 3 { // known clients: their flows may be idle for 120 s
			c.ask("?")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// spread makes the first Service one of three backends.
func spread(s *Server) {
	s.MaxFlows, s.IdleTimeout = 4000, 0
	var addrs []netip.AddrPort
	for i := range 3 {
		addrs = append(addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 53))
	}
	table, err := lb.NewTable([]*lb.Service{service(1, addrs...)}, lb.Node{})
	if err != nil {
		panic(err)
	}
	s.LB.Update(table)
}

// Questions from ever new ports, 2,000 a second for 25 s, keep a part of the places only; they evict no flow that has
// had more than one exchange, nor one that waits for its answer; and who asked once and pauses goes on where it was.
func TestOneShots(t *testing.T) {
	r := newRoom(t, 1, spread)
	r.now = eventloop.Now()
	quic := r.ask(0, r.client(1), true)
	for range settling {
		r.ask(0, r.client(1), true)
	}
	waiting := r.ask(0, r.client(2), false)
	once := r.ask(0, r.client(3), true)
	before, key := once.choice, once.key
	const each = int64(time.Second / 2000)
	for range 25 * 2000 {
		r.now += each
		r.flood(0, 1, true)
		if n := r.ages.len; n > r.places/oneShotsPart+3 {
			t.Fatalf("%d flows of %d places", n, r.places)
		}
	}
	r.check()
	if s := r.count.Evicted.Load(); s != 0 || r.count.Parked.Load() == 0 {
		t.Errorf("%d flows evicted and %d parked, want none and some", s, r.count.Parked.Load())
	}
	if r.lns[0].flows[quic.key] != quic || r.lns[0].flows[waiting.key] != waiting {
		t.Error("a flow in use has ended")
	}
	if r.lns[0].flows[key] != nil {
		t.Error("a flow that was answered once is there after 25 s: the test tests nothing")
	}
	again := r.ask(0, r.client(3), true)
	if again.choice != before || again.assurance != known {
		t.Errorf("the client that paused is at %v, was at %v; known: %v", again.choice.Backend(), before.Backend(),
			again.assurance == known)
	}
	if got := [2]int64{waiting.idle(r.now), quic.idle(r.now)}; got != [2]int64{balancer.UDPTimeout, balancer.UDPStreamTimeout} {
		t.Errorf("flows live for %v ns", got)
	}
}

// Where many ask at once none is parked before it was idle for as long as it always could be.
func TestParkedNoSooner(t *testing.T) {
	r := newRoom(t, 1, spread)
	r.now = eventloop.Now()
	r.flood(0, 3000, true)
	if n := r.count.Parked.Load(); n != 0 || r.oneShots.len != 3000 {
		t.Errorf("%d parked at once, %d oneShots", n, r.oneShots.len)
	}
	r.now += brief
	r.flood(0, 2000, true)
	if n := r.count.Parked.Load(); n != 2000 || r.oneShots.len != 3000 { // one for each that came
		t.Errorf("%d parked, %d oneShots", n, r.oneShots.len)
	}
	for f := r.ages.first; f != nil; f = f.links[byAge].next {
		if f.idle(r.now) != lasting {
			t.Fatalf("afterwards a flow lives for %d ns, so that there are many for long", f.idle(r.now))
		}
	}
	r.check()
}

// TestFloodLeaves: what a flood has taken is given back soon after it, but for conversations; and where clients go on
// is remembered.
func TestFloodLeaves(t *testing.T) {
	r := newRoom(t, 1, spread)
	r.now = eventloop.Now()
	talking := r.ask(0, r.client(1), true)
	for range settling + 1 {
		r.now += int64(100 * time.Millisecond)
		talking.asked(r.now)
		talking.active = r.now
		talking.answered(r.now)
	}
	r.flood(0, 3*r.places, true)
	if r.count.Evicted.Load() == 0 {
		t.Fatal("the flood evicts none")
	}
	parked := r.count.Parked.Load()
	last := r.ages.first.key.client
	r.now += lasting + 1
	left := uint64(0)
	for f := r.ages.first; f != nil; {
		next := f.links[byAge].next
		if f.rest(r.now) <= 0 {
			left++
			f.expire(r.now, 0)
		}
		f = next
	}
	if r.ages.len != 1 || r.ages.first != talking || r.count.Parked.Load()-parked != left || r.count.Expired.Load() != 0 {
		t.Errorf("%d flows are left, %d of %d that went are parked and %d expired", r.ages.len,
			r.count.Parked.Load()-parked, left, r.count.Expired.Load())
	}
	if resumed := r.count.Resumed.Load(); r.ask(0, last, true) == nil || r.count.Resumed.Load() != resumed+1 {
		t.Error("the last one does not go on where it was")
	}
	r.now += pressing
	if f := r.ask(0, r.client(2), true); f.idle(r.now) != balancer.UDPTimeout {
		t.Errorf("after the flood a flow lives for %d ns", f.idle(r.now))
	}
	r.check()
}

// Two answers to one question, or to two that are sent at once, are one exchange; answers that go on for long are not.
func TestAnswersInARow(t *testing.T) {
	r := newRoom(t, 1, spread)
	r.now = eventloop.Now()
	f := r.ask(0, r.client(1), true)
	f.answered(r.now + int64(10*time.Millisecond))
	if f.assurance != unknown || !f.oneShot {
		t.Error("a client is known by two answers in a row")
	}
	f.answered(r.now + lasting)
	if f.assurance != known || f.oneShot || r.oneShots.len != 0 {
		t.Error("a client that is answered for two seconds is not known")
	}
	r.check()
}

// A port that a host uses again and again, with pauses between, is remembered for longer, but keeps no socket.
func TestPortUsedAgain(t *testing.T) {
	r := newRoom(t, 1, spread)
	r.now = eventloop.Now()
	f := r.ask(0, r.client(1), true)
	for range 5 {
		r.now += 2 * lasting
		r.ask(0, r.client(1), true)
		f.answered(r.now) // also of a resolver that asks for two records
	}
	if !f.oneShot || f.assurance != known || f.idle(r.now) != balancer.UDPStreamTimeout {
		t.Errorf("oneShot: %v, known: %v, lives for %d ns", f.oneShot, f.assurance == known, f.idle(r.now))
	}
	r.check()
}
