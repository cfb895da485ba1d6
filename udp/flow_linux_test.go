package udp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// The least recently active flow makes room, and only that.
func TestMaxFlows(t *testing.T) {
	p := startProxy(t, 1, func(s *Server) { s.MaxFlows = 3 }, telling(t, "127.0.0.1:0").addr)
	clients := make([]*client, 5)
	flows := make([]string, 5)
	ask := func(i int) (fresh bool) {
		was := flows[i]
		flows[i] = clients[i].ask("q")
		return flows[i] != was
	}
	for i := range clients {
		clients[i] = dial(t, p.addr)
	}
	for _, step := range []struct {
		client int
		fresh  bool
	}{
		{0, true}, {1, true}, {2, true}, // full
		{0, false}, {2, false}, // now 1 is the oldest
		{3, true}, {0, false}, {2, false}, {3, false},
		{1, true}, // evicts 0
		{2, false}, {3, false}, {1, false},
		{0, true}, {4, true}, // evict 2 and 3
		{1, false},
	} {
		if fresh := ask(step.client); fresh != step.fresh {
			t.Fatalf("client %d: new flow %v, want %v", step.client, fresh, step.fresh)
		}
		if n := p.Stats().Active; n > 3 {
			t.Fatalf("%d flows, want 3 at most", n)
		}
	}
	if s := p.Stats(); s.Evicted != 4 || s.Created != 7 {
		t.Errorf("stats = %+v, want 4 of 7 flows evicted", s)
	}
}

// A flow that only waits for late answers makes room before any other.
func TestLeavingFlowsAreEvictedFirst(t *testing.T) {
	gone, stays := telling(t, "127.0.0.1:0"), telling(t, "127.0.0.1:0")
	p := startProxy(t, 1, func(s *Server) { s.MaxFlows = 2 }, gone.addr)
	a, b, c := dial(t, p.addr), dial(t, p.addr), dial(t, p.addr)
	p.setBackends(stays.addr)
	flow := b.ask("q")
	// Where b is takes no new flows now, but serves.
	table := service(1, gone.addr, stays.addr)
	table.Backends[1].Ready = false
	p.setServices(table)
	a.ask("q")
	p.setBackends(stays.addr)
	// a's flow is leaving, though it was active later than b's.
	eventually(t, "a's flow is leaving", func() bool { return p.Stats().Moved == 1 })
	c.ask("q")
	if again := b.ask("q"); again != flow {
		t.Errorf("b was flow %s, now %s", flow, again)
	}
	if s := p.Stats(); gone.asked.Load() != 1 || s.Moved != 1 || s.Evicted != 1 || s.Active != 2 {
		t.Errorf("stats = %+v, want 1 flow moved and evicted", s)
	}
}

// An answer counts as activity, so the flow that only receives is not evicted.
func TestAnswersKeepAFlow(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, func(s *Server) { s.MaxFlows = 2 }, b.addr)
	from := make([]netip.AddrPort, 3)
	clients := make([]*client, 3)
	for i := range clients {
		clients[i] = dial(t, p.addr)
		if i == 2 { // the first has an answer later than the second's question
			if _, err := b.WriteToUDPAddrPort([]byte("a"), from[0]); err != nil {
				t.Fatal(err)
			}
			clients[0].receive()
		}
		clients[i].send("q")
		var err error
		if _, from[i], err = b.ReadFromUDPAddrPort(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.WriteToUDPAddrPort([]byte("still there"), from[0]); err != nil {
		t.Fatal(err)
	}
	if a := clients[0].receive(); a != "still there" {
		t.Errorf("answer = %q", a)
	}
}

// One descriptor for all flows of a loop: each client is served at the cost of
// the one before, in whichever frontend that is.
func TestBudget(t *testing.T) {
	budget := &eventloop.Budget{Limit: 1}
	p := startProxy(t, 1, func(s *Server) { s.Descriptors = budget }, echo(t, "127.0.0.1:0").addr)
	second, err := p.Listen(frontend(2, false), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	p.setServices(p.LB.Table().Services()[0], service(2, naming(t, "two").addr))
	a, b, c := dial(t, p.addr), dial(t, p.addr), dial(t, second)
	for range 5 {
		for _, x := range []*client{a, b, c} {
			x.ask("q")
			if n := budget.Used(); n != 1 {
				t.Fatalf("%d descriptors in use, want 1", n)
			}
		}
	}
	if s := p.Stats(); s.Evicted != 14 || s.Active != 1 || s.NoDescriptor != 0 {
		t.Errorf("stats = %+v, want 14 flows evicted", s)
	}
	// Others have it all: there is nothing to evict.
	p.Unlisten(frontend(2, false))
	if !budget.Take(1) {
		t.Fatal("Unlisten has not returned the descriptor")
	}
	a.send("q")
	eventually(t, "a datagram is dropped", func() bool { return p.Stats().NoDescriptor == 1 })
	budget.Give(1)
	if got := a.ask("again"); got != "again" {
		t.Errorf("answer = %q", got)
	}
	p.Close()
	if n := budget.Used(); n != 0 {
		t.Errorf("%d descriptors in use after Close", n)
	}
}

// The kernel itself has no descriptor left (EMFILE): the oldest flow gives its own
// up, and without one the datagram is dropped.
func TestKernelIsShortOfDescriptors(t *testing.T) {
	p := startProxy(t, 1, nil, echo(t, "127.0.0.1:0").addr)
	a, b := dial(t, p.addr), dial(t, p.addr)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 200
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	var filling []int
	restore := func() {
		for _, fd := range filling {
			_ = unix.Close(fd)
		}
		filling = nil
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}
	defer restore()
	fill := func() {
		for {
			fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return
			}
			filling = append(filling, fd)
		}
	}
	fill()
	a.send("lost")
	eventually(t, "a datagram is dropped", func() bool { return p.Stats().NoDescriptor == 1 })
	_ = unix.Close(filling[0])
	filling = filling[1:]
	for range 3 {
		for _, c := range []*client{a, b} {
			if got := c.ask("q"); got != "q" {
				t.Errorf("answer = %q", got)
			}
		}
	}
	if s := p.Stats(); s.Evicted != 5 || s.NoDescriptor != 1 {
		t.Errorf("stats = %+v, want 5 flows evicted", s)
	}
}

// Traffic in either direction keeps a flow alive.
func TestActivityKeepsAFlow(t *testing.T) {
	const idle = 300 * time.Millisecond
	for name, one := range map[string]struct{ question, answer bool }{
		"both": {true, true}, "questions only": {true, false}, "answers only": {false, true},
	} {
		b := listenUDP(t, "127.0.0.1:0")
		p := startProxy(t, 1, func(s *Server) { s.IdleTimeout = idle }, b.addr)
		c := dial(t, p.addr)
		c.send("q")
		_, from, err := b.ReadFromUDPAddrPort(c.buf)
		if err != nil {
			t.Fatal(err)
		}
		for start := time.Now(); time.Since(start) < 3*idle; {
			if one.question {
				c.send("q")
				_, again, err := b.ReadFromUDPAddrPort(c.buf)
				if err != nil {
					t.Fatal(err)
				}
				if again != from {
					t.Fatalf("%s: a new flow while the old one was active", name)
				}
			}
			if one.answer {
				if _, err := b.WriteToUDPAddrPort([]byte("a"), from); err != nil {
					t.Fatal(err)
				}
				c.receive()
			}
		}
		p.idle()
		if s := p.Stats(); s.Created != 1 || s.Expired != 1 {
			t.Errorf("%s: stats = %+v, want one flow", name, s)
		}
	}
}

// Questions around the moment of expiry: every one arrives. (An answer may come
// later than the idle timeout allows, on a busy machine.)
func TestNoQuestionIsLostAtExpiry(t *testing.T) {
	const idle, clients, questions = 4 * time.Duration(eventloop.Tick), 20, 40
	b := echo(t, "127.0.0.1:0")
	p := startProxy(t, 2, func(s *Server) { s.IdleTimeout = idle }, b.addr)
	var all sync.WaitGroup
	for range clients {
		c := dial(t, p.addr)
		all.Go(func() {
			for range questions {
				if _, err := c.Write([]byte("q")); err != nil {
					t.Error(err)
				}
				// The time that passes is what is tested.
				time.Sleep(idle - idle/4 + rand.N(idle/2))
			}
		})
	}
	all.Wait()
	eventually(t, "all questions have arrived", func() bool { return b.asked.Load() == clients*questions })
	if s := p.Stats(); s.Expired < clients || s.DatagramsIn != clients*questions {
		t.Errorf("stats = %+v, want flows expired and %d questions", s, clients*questions)
	}
}

// An answer that waits in the socket when the timer fires is delivered, and keeps
// the flow.
func TestAnswerAtExpiry(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, b.addr)
	c := dial(t, p.addr)
	c.send("q")
	_, from, err := b.ReadFromUDPAddrPort(c.buf)
	if err != nil {
		t.Fatal(err)
	}
	sh := p.shards[0]
	if err := sh.loop.Do(func() {
		f := sh.recency.first
		f.active -= sh.idle // long ago
		if _, err := b.WriteToUDPAddrPort([]byte("just in time"), from); err != nil {
			t.Error(err)
		}
		sh.loop.StopTimer(&f.timer)
		f.Expire(&f.timer)
		if !f.timer.Active() {
			t.Error("the flow has expired")
		}
	}); err != nil {
		t.Fatal(err)
	}
	if a := c.receive(); a != "just in time" {
		t.Errorf("answer = %q", a)
	}
}

// A queue much longer than one event may take is served to its end, in the order
// of each flow, and the flows of one batch do not mix.
func TestLongQueue(t *testing.T) {
	const flows, each = 7, 3*rounds*slots/7 + 1
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, b.addr)
	clients := make([]*client, flows)
	for i := range clients {
		clients[i] = dial(t, p.addr)
	}
	release := p.block()
	for j := range each {
		for i, c := range clients {
			c.send(fmt.Sprintf("%d %d", i, j))
		}
	}
	release()
	next := make([]int, flows)
	from := make([]netip.AddrPort, flows)
	buf := make([]byte, 100)
	for range flows * each {
		_ = b.SetReadDeadline(time.Now().Add(patience))
		n, sender, err := b.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatalf("%v; stats = %+v", err, p.Stats())
		}
		var i, j int
		if _, err := fmt.Sscanf(string(buf[:n]), "%d %d", &i, &j); err != nil {
			t.Fatal(err)
		}
		if j != next[i] {
			t.Fatalf("flow %d: datagram %d came when %d was due", i, j, next[i])
		}
		if next[i]++; j > 0 && sender != from[i] {
			t.Fatalf("flow %d changed to %s", i, sender)
		}
		from[i] = sender
	}
	// And back: one flow's answers, more than an event may take.
	release = p.block()
	for j := range 2 * rounds * slots {
		if _, err := b.WriteToUDPAddrPort(fmt.Append(nil, j), from[0]); err != nil {
			t.Fatal(err)
		}
	}
	release()
	for j := range 2 * rounds * slots {
		if a := clients[0].receive(); a != fmt.Sprint(j) {
			t.Fatalf("answer %d = %q", j, a)
		}
	}
}

// Windows of datagrams at a moderate load: what is sent comes back, all of it.
func TestNothingIsLostUnderLoad(t *testing.T) {
	const clients, window, rounds = 20, 16, 50
	for _, size := range []int{64, 1200} {
		p := startProxy(t, 2, nil, echo(t, "127.0.0.1:0").addr, echo(t, "127.0.0.1:0").addr)
		var all sync.WaitGroup
		for range clients {
			c := dial(t, p.addr)
			all.Go(func() {
				q := make([]byte, size)
				for range rounds {
					for range window {
						if _, err := c.Write(q); err != nil {
							t.Error(err)
							return
						}
					}
					for got := range window {
						_ = c.SetReadDeadline(time.Now().Add(patience))
						if n, err := c.Read(c.buf); err != nil || n != size {
							t.Errorf("%d of %d came back; %d bytes, %v", got, window, n, err)
							return
						}
					}
				}
			})
		}
		all.Wait()
		const sent = clients * window * rounds
		eventually(t, "the datagrams of both ways are counted", func() bool {
			s := p.Stats()
			return s.DatagramsIn == sent && s.DatagramsOut == sent && s.BytesOut == sent*uint64(size)
		})
	}
}

// A datagram costs no allocation, whatever way it goes.
func TestNoAllocation(t *testing.T) {
	p := startProxy(t, 1, nil, echo(t, "127.0.0.1:0").addr)
	clients := make([]*client, 40)
	for i := range clients {
		clients[i] = dial(t, p.addr)
		_ = clients[i].SetReadDeadline(time.Now().Add(time.Minute))
	}
	q := make([]byte, 64)
	round := func() {
		for _, c := range clients {
			for range 4 {
				if _, err := c.Write(q); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, c := range clients {
			for range 4 {
				if _, err := c.Read(c.buf); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	round()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 200
	for range n {
		round()
	}
	runtime.ReadMemStats(&after)
	// The runtime itself allocates now and then; a datagram that did would show as
	// 32,000.
	if mallocs := after.Mallocs - before.Mallocs; mallocs > 500 {
		t.Errorf("%d datagrams there and back cost %d allocations", n*len(clients)*4, mallocs)
	}
}

// A datagram without a source port cannot be answered.
func TestNoSourcePort(t *testing.T) {
	p := startProxy(t, 1, nil, echo(t, "127.0.0.1:0").addr)
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		t.Skipf("raw sockets need CAP_NET_RAW: %v", err)
	}
	defer func() { _ = unix.Close(raw) }()
	port := p.addr.Port()
	header := []byte{0, 0, byte(port >> 8), byte(port), 0, 8, 0, 0} // RFC 768
	if err := unix.Sendto(raw, header, 0, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datagram is counted", func() bool { return p.Stats().Malformed == 1 })
	if a := dial(t, p.addr).ask("q"); a != "q" {
		t.Errorf("answer = %q", a)
	}
}

// A way to the client that is forbidden, or has vanished, costs the datagram only.
func TestNoWayToClient(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxyAt(t, 1, nil, "0.0.0.0:0", b.addr)
	c := dial(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), p.addr.Port()))
	c.send("q")
	_, from, err := b.ReadFromUDPAddrPort(c.buf)
	if err != nil {
		t.Fatal(err)
	}
	sh := p.shards[0]
	if err := sh.loop.Do(func() { sh.recency.first.key.local = netip.MustParseAddr("192.0.2.1") }); err != nil {
		t.Fatal(err)
	}
	if _, err := b.WriteToUDPAddrPort([]byte("a"), from); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the answer is dropped", func() bool { s := p.Stats(); return s.Unreachable == 1 && s.SendErrors == 1 })
	if err := sh.loop.Do(func() { sh.recency.first.key.local = netip.MustParseAddr("127.0.0.1") }); err != nil {
		t.Fatal(err)
	}
	if _, err := b.WriteToUDPAddrPort([]byte("b"), from); err != nil {
		t.Fatal(err)
	}
	if a := c.receive(); a != "b" {
		t.Errorf("answer = %q", a)
	}
}
