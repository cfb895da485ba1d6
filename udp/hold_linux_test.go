package udp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// holding is a Service that holds its clients, so many at most.
func holding(d time.Duration, most int32) *lb.Service {
	s := service(1)
	s.Policies = &lb.Policies{Hold: int64(d), HoldConnections: most}
	return s
}

// TestHold: the first datagrams of clients of a Service without endpoints are kept, in order, of so many clients, and
// sent when there is an endpoint.
func TestHold(t *testing.T) {
	p := startProxy(t, 2, nil)
	p.setServices(holding(time.Hour, 3))
	clients := dialAll(t, p.addr, 3)
	for i, c := range clients {
		for n := range heldEach + 2 {
			c.send(fmt.Sprint(i, n))
		}
	}
	eventually(t, "all is kept, or dropped", func() bool { s := p.Stats(); return s.Held == 3 && s.NoBackend == 6 })
	dial(t, p.addr).send("one too many")
	eventually(t, "it is dropped", func() bool { return p.Stats().NoBackend == 7 })
	with := holding(time.Hour, 3)
	b := listenUDP(t, "127.0.0.1:0").serve(t, func(p []byte, _ netip.AddrPort) []byte { return p })
	with.Backends = append(with.Backends, lb.Backend{Addr: b.addr, Ready: true, Serving: true})
	p.setServices(with)
	for i, c := range clients {
		for n := range heldEach {
			if got, want := c.receive(), fmt.Sprint(i, n); got != want {
				t.Errorf("client %d is answered %q, want %q", i, got, want)
			}
		}
	}
	if s := p.Stats(); s.Held != 0 || s.HoldFull != 7 || s.NoBackend != 7 || s.Active != 3 ||
		p.LB.Counters().All()[0].Held != 0 {
		t.Errorf("stats = %+v", s)
	}
	for _, sh := range p.shards {
		onLoop(t, sh, func() {
			if sh.holds.bytes != 0 || len(sh.holds.all)+len(sh.holds.of)+sh.holds.order.Len() != 0 {
				t.Errorf("%d bytes of %d clients are kept still", sh.holds.bytes, len(sh.holds.all))
			}
		})
	}
}

// TestHoldExpires: what was kept for as long as the Service requests is dropped, as is that of a frontend that goes.
func TestHoldExpires(t *testing.T) {
	p := startProxy(t, 1, nil)
	p.setServices(holding(50*time.Millisecond, 0))
	first, second := dial(t, p.addr), dial(t, p.addr)
	first.send("?")
	second.send("?")
	eventually(t, "both have expired", func() bool {
		s := p.Stats()
		return s.HoldExpired == 2 && s.Held == 0 &&
			s.NoBackend == 2
	})
	p.setServices(holding(time.Hour, 0))
	first.send("?")
	eventually(t, "it is kept", func() bool { return p.Stats().Held == 1 })
	p.Unlisten(p.front)
	if s := p.Stats(); s.Held != 0 || s.NoBackend != 3 || p.LB.Counters().All()[0].Held != 0 {
		t.Errorf("stats = %+v, want nothing kept", s)
	}
}

// TestHoldOfSeveral: that one Service holds its clients for long does not make those of another wait longer.
func TestHoldOfSeveral(t *testing.T) {
	p := startProxy(t, 1, nil)
	p.setServices(holding(time.Hour, 0))
	dial(t, p.addr).send("?")
	eventually(t, "it is kept", func() bool { return p.Stats().Held == 1 })
	brief := service(2)
	brief.Policies = &lb.Policies{Hold: int64(50 * time.Millisecond)}
	dial(t, p.second(brief)).send("?")
	eventually(t, "it has expired", func() bool { s := p.Stats(); return s.HoldExpired == 1 && s.Held == 1 })
}

// TestHoldAndAnnounce: what was kept has its PROXY header like all that follows.
func TestHoldAndAnnounce(t *testing.T) {
	p := startProxy(t, 1, nil)
	s := holding(time.Hour, 0)
	s.Policies.ProxyProtocol = "v2"
	p.setServices(s)
	c := dial(t, p.addr)
	c.send("early")
	eventually(t, "it is kept", func() bool { return p.Stats().Held == 1 })
	b := listenUDP(t, "127.0.0.1:0")
	with := *s
	with.Backends = []lb.Backend{{Addr: b.addr, Ready: true, Serving: true}}
	p.setServices(&with)
	buf := make([]byte, 1000)
	for _, want := range []string{"early", "late"} {
		_ = b.SetReadDeadline(time.Now().Add(patience))
		n, err := b.Read(buf)
		testbed.Check(t, err)
		if got := string(buf[:n]); !strings.HasPrefix(got, "\r\n\r\n\x00\r\nQUIT\n") || !strings.HasSuffix(got, want) {
			t.Errorf("the backend got %q, want a header and %q", got, want)
		}
		if want == "early" {
			c.send("late")
		}
	}
}

// TestHoldShares: a Service gets no more room than is free, so that there is some for another.
func TestHoldShares(t *testing.T) {
	var hs holds
	a, b := lb.Name{Name: "a"}, lb.Name{Name: "b"}
	fill := func(of lb.Name) (n int) {
		for hs.take(of, heldSize) {
			n += heldSize
		}
		return n
	}
	if first, second := fill(a), fill(b); first != heldBytes/2 || second != heldBytes/4 || hs.bytes != first+second {
		t.Errorf("one Service gets %d bytes of %d, and another %d after it", first, heldBytes, second)
	}
}
