package udp

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

// A client that asks once is answered, although two of three backends refuse: the
// question comes back by ICMP and goes to the next backend.
func TestRefusingBackendIsNotNoticed(t *testing.T) {
	needsRefusals(t)
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		p := startProxy(t, 2, nil, refusing(t, at), echo(t, at).addr, refusing(t, at))
		for i := range 100 {
			q := strings.Repeat("?", i*5) // up to what ICMP quotes whole
			if a := dial(t, p.addr).ask(q); a != q {
				t.Fatalf("%s: question %q, answer %q", at, q, a)
			}
		}
		s := p.Stats()
		if s.Refused == 0 || s.Resent != s.Refused || s.Unreachable != 0 || s.Created != 100 {
			t.Errorf("%s: stats = %+v, want each refused datagram sent again", at, s)
		}
		if s.DatagramsIn != 100+s.Resent {
			t.Errorf("%s: %d datagrams went to backends, want 100 and %d again", at, s.DatagramsIn, s.Resent)
		}
	}
}

// A datagram that does not come back whole is lost, and never sent on cut off.
func TestLongRefusedDatagramIsNotCutOff(t *testing.T) {
	needsRefusals(t)
	p := startProxy(t, 1, nil, refusing(t, "127.0.0.1:0"))
	c := dial(t, p.addr)
	c.send(strings.Repeat("x", 5000))
	eventually(t, "the datagram is refused", func() bool { return p.Stats().Refused == 1 })
	p.setBackends(echo(t, "127.0.0.1:0").addr)
	if a := c.ask("next"); a != "next" {
		t.Errorf("answer = %q", a)
	}
	if s := p.Stats(); s.Resent != 0 || s.DatagramsIn != 2 {
		t.Errorf("stats = %+v, want none sent again", s)
	}
}

func TestEveryBackendRefuses(t *testing.T) {
	needsRefusals(t)
	p := startProxy(t, 1, nil, refusing(t, "127.0.0.1:0"), refusing(t, "127.0.0.1:0"))
	c := dial(t, p.addr)
	c.send("q")
	eventually(t, "the flow is given up", func() bool { s := p.Stats(); return s.Created == 1 && s.Active == 0 })
	if s := p.Stats(); s.Refused != maxAttempts || s.Resent != maxAttempts-1 {
		t.Errorf("stats = %+v, want %d refusals", s, maxAttempts)
	}
	// The client is not stuck with that.
	p.setBackends(naming(t, "a").addr)
	if a := c.ask("q"); a != "a" {
		t.Errorf("answer = %q", a)
	}
}

// A backend that ceases to be there in the middle of a flow: the next datagram is
// answered by another, in spite of no change of the table.
func TestBackendDies(t *testing.T) {
	a, b := naming(t, "a"), naming(t, "b")
	p := startProxy(t, 2, nil, a.addr, b.addr)
	clients := askAll(t, p.addr, 50)
	_ = a.Close()
	for range 3 {
		for i, c := range clients {
			if name := c.ask("q"); name != "b" {
				t.Fatalf("client %d is answered by %q", i, name)
			}
		}
	}
	if s := p.Stats(); s.Refused != 25 || s.Resent != 25 || s.Created != 50 {
		t.Errorf("stats = %+v, want 25 flows refused once and none new", s)
	}
}

// Every datagram that is sent after the table has changed is answered by a backend
// that is in the table.
func TestRemovedBackend(t *testing.T) {
	a, b := naming(t, "a"), naming(t, "b")
	p := startProxy(t, 2, nil, a.addr, b.addr)
	clients := askAll(t, p.addr, 100)
	for round, want := range []struct {
		name string
		addr netip.AddrPort
	}{{"b", b.addr}, {"a", a.addr}, {"b", b.addr}} {
		p.setBackends(want.addr)
		for range 2 {
			for i, c := range clients {
				if name := c.ask("q"); name != want.name {
					t.Fatalf("round %d: client %d is answered by %q, want %q", round, i, name, want.name)
				}
			}
		}
	}
	if s := p.Stats(); s.Moved != 50+100+100 || s.Created != 100+s.Moved {
		t.Errorf("stats = %+v, want 250 flows moved", s)
	}
	eventually(t, "the flows that were left are closed", func() bool { return p.Stats().Active == 100 })
	for _, c := range clients {
		c.ask("q")
	}
	if s := p.Stats(); s.Created != 350 {
		t.Errorf("stats = %+v, want the clients to be known still", s)
	}
}

// A flow whose client only listens ends when its backend is removed, also while
// the backend goes on sending.
func TestRemovedBackendOfListeningClient(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, b.addr)
	c := dial(t, p.addr)
	c.send("subscribe")
	from := b.question(t)
	p.setBackends(refusing(t, "127.0.0.1:0"))
	eventually(t, "the flow has ended", func() bool {
		_, _ = b.WriteToUDPAddrPort([]byte("news"), from)
		return p.Stats().Active == 0
	})
	if s := p.Stats(); s.Moved != 1 || s.Expired != 0 || s.DatagramsOut == 0 {
		t.Errorf("stats = %+v, want 1 flow moved, and answers until then", s)
	}
}

// What a backend was asked before it was removed it may answer afterwards, whether
// the client has moved on or not.
func TestAnswerAfterRemoval(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, b.addr)
	for _, moveOn := range []bool{false, true} {
		p.setBackends(b.addr)
		c := dial(t, p.addr)
		c.send("slow question")
		from := b.question(t)
		p.setBackends(naming(t, "other").addr)
		if moveOn {
			if a := c.ask("q"); a != "other" {
				t.Errorf("answer = %q after the change", a)
			}
		}
		b.answer(t, "late answer", from)
		if a := c.receive(); a != "late answer" {
			t.Errorf("answer = %q", a)
		}
	}
}

// A client that is gone is no trouble for the others, although the host reports it
// by ICMP that it is.
func TestClientIsGone(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, b.addr)
	gone, stays := dial(t, p.addr), dial(t, p.addr)
	gone.send("q")
	toGone := b.question(t)
	_ = gone.Close()
	stays.send("q")
	toStays := b.question(t)
	for i := range 20 {
		b.answer(t, "to no socket", toGone)
		if _, err := b.WriteToUDPAddrPort([]byte{byte(i)}, toStays); err != nil {
			t.Fatal(err)
		}
		if a := stays.receive(); !bytes.Equal([]byte(a), []byte{byte(i)}) {
			t.Fatalf("answer %d = %q", i, a)
		}
	}
	eventually(t, "all answers are sent", func() bool { return p.Stats().DatagramsOut == 40 })
	if n := p.Stats().SendErrors; n != 0 {
		t.Errorf("%d sends were disturbed", n)
	}
}

// TestFrontendChangesHands: a frontend becomes another Service's while the one that
// had it lives on, with the backend of the flow; the flow goes to the new owner's.
func TestFrontendChangesHands(t *testing.T) {
	a, b := naming(t, "a"), naming(t, "b")
	p := startProxy(t, 1, nil, a.addr)
	c := dial(t, p.addr)
	if got := c.ask("?"); got != "a" {
		t.Fatalf("answer %q, want a", got)
	}
	old, owner := service(1, a.addr), service(2, b.addr)
	old.Addresses, owner.Addresses = owner.Addresses, old.Addresses
	p.setServices(old, owner)
	eventually(t, "the flow has moved", func() bool { return p.Stats().Moved == 1 })
	if got := c.ask("?"); got != "b" {
		t.Errorf("answer %q after the frontend has become another Service's, want b", got)
	}
}
