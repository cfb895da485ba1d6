package udp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

func TestEcho(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		b := echo(t, at)
		p := startProxy(t, 2, nil, b.addr)
		c := dial(t, p.addr)
		for i := range 100 {
			q := fmt.Sprint("question ", i)
			if a := c.ask(q); a != q {
				t.Fatalf("%s: answer to %q = %q", at, q, a)
			}
		}
		// An answer is counted after it was sent, so the client may be faster.
		want := Stats{Active: 1, Created: 1, DatagramsIn: 100, DatagramsOut: 100, BytesIn: 1090, BytesOut: 1090}
		eventually(t, fmt.Sprintf("stats are %+v", want), func() bool { return p.Stats() == want })
	}
}

// The bytes of each Service are counted: those of long flows now and then, all at the end.
func TestServiceBytes(t *testing.T) {
	needsRefusals(t)
	b := echo(t, "127.0.0.1:0")
	p := startProxy(t, 2, nil, b.addr)
	second := p.second(service(2, refusing(t, "127.0.0.1:0"), b.addr))
	bytes := func(name string) (in, out uint64) {
		for _, s := range p.LB.Counters().All() {
			if s.ID.Name == name {
				return s.BytesIn, s.BytesOut
			}
		}
		t.Fatalf("no Service %s", name)
		return 0, 0
	}
	const large, times = 60_000, 10
	c := dial(t, p.addr)
	for range times {
		c.ask(strings.Repeat("x", large))
	}
	eventually(t, "most bytes of a flow are counted while it lasts", func() bool {
		in, out := bytes("s1")
		return in >= large*times/2 && out >= large*times/2
	})
	for range 2 { // one of the two is refused first
		dial(t, second).ask("12345")
	}
	const out = large*times + 10
	eventually(t, "all answers are counted", func() bool { return p.Stats().BytesOut == out }) // after they were sent
	p.Unlisten(p.front)
	p.Unlisten(frontend(2, false))
	for name, want := range map[string][2]uint64{"s1": {large * times, large * times}, "s2": {15, 10}} {
		if in, out := bytes(name); in != want[0] || out != want[1] {
			t.Errorf("%s: %d bytes in and %d out, want %d", name, in, out, want)
		}
	}
}

// Datagrams of every size pass whole, the empty and the largest ones included.
func TestSizes(t *testing.T) {
	for at, largest := range map[string]int{"127.0.0.1:0": 65507, "[::1]:0": 65527} {
		p := startProxy(t, 1, nil, echo(t, at).addr)
		c := dial(t, p.addr)
		for _, size := range []int{0, 1, 512, 1232, 1472, 1473, 9000, 65000, largest} {
			q := string(bytes.Repeat([]byte{byte(size), 0xa5}, size)[:size])
			if a := c.ask(q); a != q {
				t.Fatalf("%s: %d bytes came back as %d", at, size, len(a))
			}
		}
	}
}

// A thousand clients at once: each has one backend while it is active, the
// backends get equally many, and after the idle timeout clients move.
func TestThousandClients(t *testing.T) {
	if wine {
		t.Skip("SKIPPED: under wine a round of 1,000 datagrams may take longer than the idle timeout")
	}
	var addrs []netip.AddrPort
	backends := map[string]*backend{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		backends[name] = naming(t, name)
		addrs = append(addrs, backends[name].addr)
	}
	p := startProxy(t, 2, func(s *Server) { s.IdleTimeout = 5 * time.Second }, addrs...)
	clients := dialAll(t, p.addr, 1000)
	round := func() []string {
		for _, c := range clients {
			c.send("which backend?")
		}
		answers := make([]string, len(clients))
		for i, c := range clients {
			answers[i] = c.receive()
		}
		return answers
	}
	first := round()
	count := map[string]int{}
	for _, name := range first {
		count[name]++
	}
	for name := range backends {
		if count[name] != 200 {
			t.Errorf("backend %s has %d of 1,000 clients, want 200", name, count[name])
		}
	}
	for range 3 {
		for i, name := range round() {
			if name != first[i] {
				t.Fatalf("client %d was answered by %s, then by %s while active", i, first[i], name)
			}
		}
	}
	p.idle()
	if s := p.Stats(); s.Created != 1000 || s.Expired != 1000 {
		t.Errorf("stats = %+v, want 1,000 flows created and expired", s)
	}
	// Two loops take turns in any order, by which all may come to where they were, but not twice.
	moved := 0
	for again := 0; moved == 0 && again < 5; again++ {
		p.idle()
		dial(t, p.addr).ask("shifts round robin by one")
		for i, name := range round() {
			if name != first[i] {
				moved++
			}
		}
	}
	if moved == 0 {
		t.Error("no client moved after the idle timeout")
	}
}

func TestManyServices(t *testing.T) {
	const n = 200
	p := startProxy(t, 2, nil, naming(t, "s1").addr)
	services := []*lb.Service{p.LB.Table().Services()[0]}
	addrs := make([]netip.AddrPort, n)
	for i := 2; i < n; i++ {
		services = append(services, service(i, naming(t, fmt.Sprint("s", i)).addr))
		var err error
		if addrs[i], err = p.Listen(frontend(i, false), netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
			t.Fatal(err)
		}
	}
	p.setServices(services...)
	c := listenUDP(t, "127.0.0.1:0") // the same client everywhere
	buf := make([]byte, 100)
	for i := 2; i < n; i++ {
		c.answer(t, "q", addrs[i])
		_ = c.SetReadDeadline(time.Now().Add(patience))
		size, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil || from != addrs[i] || string(buf[:size]) != fmt.Sprint("s", i) {
			t.Fatalf("service %d: answer %q from %s, %v", i, buf[:size], from, err)
		}
	}
}

func TestUnlisten(t *testing.T) {
	p := startProxy(t, 2, nil, echo(t, "127.0.0.1:0").addr)
	second := p.second(service(2, naming(t, "two").addr))
	one, two := dial(t, p.addr), dial(t, second)
	one.ask("q")
	two.ask("q")
	p.Unlisten(p.front)
	p.Unlisten(frontend(3, false)) // unknown
	if n := p.Stats().Active; n != 1 {
		t.Errorf("%d flows after Unlisten of one of two frontends, want 1", n)
	}
	if a := two.ask("q"); a != "two" {
		t.Errorf("the other frontend answers %q", a)
	}
	// The same frontend on the same port again, and on all loops.
	if _, err := p.Listen(p.front, p.addr); err != nil {
		t.Fatalf("Listen after Unlisten: %v", err)
	}
	for range 20 {
		if a := dial(t, p.addr).ask("q"); a != "q" {
			t.Fatalf("answer = %q", a)
		}
	}
}

func TestNoEndpoint(t *testing.T) {
	p := startProxy(t, 1, nil)
	if _, err := p.Listen(frontend(9, false), netip.AddrPortFrom(p.addr.Addr(), 0)); err != nil {
		t.Fatal(err)
	}
	dial(t, p.addr).send("q")
	eventually(t, "a datagram without a backend is counted", func() bool { return p.Stats().NoBackend == 1 })
	p.setServices()
	dial(t, p.addr).send("q")
	eventually(t, "a datagram without a service is counted", func() bool { return p.Stats().NoService == 1 })
	if s := p.Stats(); s.Created != 0 || s.DatagramsIn != 0 {
		t.Errorf("stats = %+v, want no flow", s)
	}
}

func TestShutdownWaitsForFlows(t *testing.T) {
	b := reflecting(t, "127.0.0.1:0")
	p := startProxy(t, 2, func(s *Server) { s.IdleTimeout = 500 * time.Millisecond }, b.addr)
	old := dial(t, p.addr)
	flow := old.ask("q")
	ended := make(chan error, 1)
	go func() { ended <- p.Shutdown(context.Background()) }()
	eventually(t, "a new client is refused", func() bool {
		if old.ask("q") != flow { // keeps the flow alive meanwhile
			t.Fatal("the flow changed during Shutdown")
		}
		dial(t, p.addr).send("q")
		return p.Stats().Draining > 0
	})
	if err := <-ended; err != nil {
		t.Errorf("Shutdown = %v", err)
	}
	if n := p.Stats().Active; n != 0 {
		t.Errorf("%d flows are left", n)
	}
	if _, err := p.Listen(p.front, p.addr); !errors.Is(err, ErrServerClosed) {
		t.Errorf("Listen after Shutdown = %v, want ErrServerClosed", err)
	}
	if err := p.Shutdown(context.Background()); err != nil {
		t.Errorf("second Shutdown = %v", err)
	}
}

func TestShutdownIsCutShort(t *testing.T) {
	p := startProxy(t, 2, nil, echo(t, "127.0.0.1:0").addr)
	dial(t, p.addr).ask("q")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := p.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 cut off") {
		t.Errorf("Shutdown = %v, want that 1 flow was cut off", err)
	}
	if n := p.Stats().Active; n != 0 {
		t.Errorf("%d flows are left", n)
	}
}

func TestCloseEndsShutdown(t *testing.T) {
	p := startProxy(t, 2, nil, echo(t, "127.0.0.1:0").addr)
	dial(t, p.addr).ask("q")
	ended := make(chan error, 1)
	go func() { ended <- p.Shutdown(context.Background()) }()
	p.Close()
	p.Close()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Shutdown = %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Shutdown waits although the Server is closed")
	}
}

func TestNothingIsLeftOpen(t *testing.T) {
	needsRefusals(t)
	b := echo(t, "127.0.0.1:0")
	clients := make([]*client, 50)
	front := frontend(1, false)
	for i := range clients {
		// Opened beforehand, so that only the Server's descriptors change.
		clients[i] = &client{UDPConn: listenUDP(t, "127.0.0.1:0").UDPConn, t: t, buf: make([]byte, 100)}
	}
	table, err := lb.NewTable([]*lb.Service{service(1, b.addr, refusing(t, "127.0.0.1:0"))}, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	checkLeaks(t, func() {
		group := newLoops(t, 3)
		s := &Server{Loops: group, LB: new(balancer.Balancer)}
		s.LB.Update(table)
		addr, err := s.Listen(front, netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range clients {
			if _, err := c.WriteToUDPAddrPort([]byte("q"), addr); err != nil {
				t.Fatal(err)
			}
			c.receive()
		}
		s.Close()
		if group == nil {
			return
		}
		if err := group.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestBytesOfOpenFlows: few bytes of a flow are counted soon, not when it ends.
func TestBytesOfOpenFlows(t *testing.T) {
	t.Parallel()
	p := startProxy(t, 1, nil, echo(t, "127.0.0.1:0").addr)
	c := dial(t, p.addr)
	for n := range uint64(2) {
		c.ask("12345")
		eventually(t, "the bytes are counted", func() bool {
			s := p.LB.Counters().All()[0]
			return s.BytesIn == 5*(n+1) && s.BytesOut == 5*(n+1)
		})
	}
	if n := p.Stats().Active; n != 1 {
		t.Errorf("%d flows, want 1", n)
	}
}
