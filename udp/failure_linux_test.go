package udp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// A burst whose first datagram is refused: the kernel stops sendmmsg in the middle
// and keeps the reason to itself. All of it arrives, in order.
func TestBurstToRefusingBackend(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, refusing(t, "127.0.0.1:0"), refusing(t, "127.0.0.1:0"), b.addr)
	const flows, burst = 6, 20
	release := p.block()
	for i := range flows {
		c := dial(t, p.addr)
		for j := range burst {
			c.send(fmt.Sprintf("%d %2d", i, j))
		}
	}
	release()
	b.inOrder(t, p, flows, burst)
	if s := p.Stats(); s.Refused == 0 || s.Unreachable+s.Busy != 0 {
		t.Errorf("stats = %+v, want refusals and no loss", s)
	}
}

// A flow learns in the middle of a burst that its backend has died, and the next ones
// are dead too: what goes to a backend that has not answered yet goes one by one, so that
// what it refuses comes back as it was, and all of the burst arrives.
func TestBurstAfterBackendsDied(t *testing.T) {
	last := listenUDP(t, "127.0.0.1:0")
	first := naming(t, "a")
	p := startProxy(t, 1, nil, first.addr)
	const flows, burst = 6, 20
	clients := askAll(t, p.addr, flows) // the trial is over
	p.setBackends(first.addr, refusing(t, "127.0.0.1:0"), refusing(t, "127.0.0.1:0"), last.addr)
	_ = first.Close()

	release := p.block()
	for _, c := range clients { // refused, and too long to come back whole
		c.send(strings.Repeat("?", 1000))
	}
	filler := dial(t, p.addr)
	for range slots - flows { // of the first batch
		filler.send("")
	}
	for i, c := range clients {
		for j := range burst {
			c.send(fmt.Sprintf("%d %2d", i, j))
		}
	}
	release()
	last.inOrder(t, p, flows, burst)
}

// No way to a backend: connect itself fails, and the next one is taken at once.
func TestNoWayToBackend(t *testing.T) {
	forbidden := netip.MustParseAddrPort("255.255.255.255:9") // broadcasting needs SO_BROADCAST
	p := startProxy(t, 1, nil, forbidden, naming(t, "a").addr)
	for range 10 {
		if a := dial(t, p.addr).ask("q"); a != "a" {
			t.Fatalf("answer = %q", a)
		}
	}
	if s := p.Stats(); s.Refused != 5 && s.Refused != 10 || s.Created != 10 {
		t.Errorf("stats = %+v, want the way refused every time it was tried", s)
	}
	p.setBackends(forbidden)
	descriptors := openDescriptors(t)
	c := dial(t, p.addr)
	c.send("q")
	eventually(t, "the datagram is dropped", func() bool { return p.Stats().Unreachable == 1 })
	_ = c.Close()
	// The flows of before have left for want of a backend; none was added.
	if n := openDescriptors(t); n > descriptors {
		t.Errorf("%d descriptors are open, %d were before", n, descriptors)
	}
}

// An answer that has arrived when its backend turns out to be dead is not lost:
// the socket is connected to another backend with what waits in it.
func TestAnswerOfDeadBackend(t *testing.T) {
	dying, heir := listenUDP(t, "127.0.0.1:0"), naming(t, "heir")
	p := startProxy(t, 1, nil, dying.addr)
	c := dial(t, p.addr)
	c.send("q")
	from := dying.question(t)
	p.setBackends(dying.addr, heir.addr)
	release := p.block()
	c.send("to no socket") // first in the loop's events, so that the refusal meets the answer
	dying.answer(t, "last words", from)
	_ = dying.Close()
	release()
	answers := map[string]bool{c.receive(): true, c.receive(): true}
	if !answers["last words"] || !answers["heir"] {
		t.Errorf("answers = %v", answers)
	}
	if s := p.Stats(); s.Refused != 1 || s.Created != 1 {
		t.Errorf("stats = %+v, want one flow that was refused once", s)
	}
}
