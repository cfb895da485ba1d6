package udp

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// The kernel itself has no descriptor left (EMFILE): the oldest flow gives its own
// up, and without one the datagram is dropped.
func TestKernelIsShortOfDescriptors(t *testing.T) {
	p := startProxy(t, 1, nil, echo(t, "127.0.0.1:0").addr)
	a, b := dial(t, p.addr), dial(t, p.addr)
	raise, err := testbed.LimitDescriptors(200)
	testbed.Check(t, err)
	var filling []int
	restore := func() {
		for _, fd := range filling {
			_ = unix.Close(fd)
		}
		filling = nil
		if err := raise(); err != nil {
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

// An answer that waits in the socket when the timer fires is delivered, and keeps
// the flow.
func TestAnswerAtExpiry(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, b.addr)
	c := dial(t, p.addr)
	c.send("q")
	from := b.question(t)
	sh := p.shards[0]
	onLoop(t, sh, func() {
		f := sh.ages.first
		f.active -= f.idle(eventloop.Now()) // long ago
		if _, err := b.WriteToUDPAddrPort([]byte("just in time"), from); err != nil {
			t.Error(err)
		}
		sh.loop.StopTimer(&f.timer)
		f.Expire(&f.timer)
		if !f.timer.Active() {
			t.Error("the flow has expired")
		}
	})
	if a := c.receive(); a != "just in time" {
		t.Errorf("answer = %q", a)
	}
}

// A question that waits in the frontend's socket when the timer fires keeps the flow, also
// if it waits behind more than one event may take. A client that sends nothing is idle all the same.
func TestQuestionAtExpiry(t *testing.T) {
	testbed.Native(t)
	for _, before := range []int{0, 3 * perEvent} {
		t.Run(fmt.Sprintf("behind %d others", before), func(t *testing.T) {
			p := startProxy(t, 1, nil, reflecting(t, "127.0.0.1:0").addr, reflecting(t, "127.0.0.1:0").addr)
			silent, other := dial(t, p.addr), dial(t, p.addr)
			silent.ask("?")
			other.ask("?")
			clients := make([]*client, 5)
			flows := make([]string, len(clients))
			for i := range clients {
				clients[i] = dial(t, p.addr)
				flows[i] = clients[i].ask("?")
			}
			sh := p.shards[0]
			onLoop(t, sh, func() {
				for range before {
					other.send("?")
				}
				for _, c := range clients {
					c.send("?")
				}
				var all []*flow
				for f := sh.ages.first; f != nil; f = f.links[byAge].next {
					f.active -= f.idle(eventloop.Now()) // long ago
					all = append(all, f)
				}
				for _, f := range all {
					sh.loop.StopTimer(&f.timer)
					f.Expire(&f.timer)
				}
			})
			for i, c := range clients {
				if got := c.receive(); got != flows[i] {
					t.Errorf("client %d is answered through %s, was through %s", i, got, flows[i])
				}
			}
			// A flow ends whose client is silent, and the next is a new one.
			eventually(t, "the flow of the silent client has expired", func() bool { return p.Stats().Expired > 0 })
			if got := p.Stats().Created; got != uint64(len(clients))+2 {
				t.Errorf("%d flows were made", got)
			}
		})
	}
}

// A queue much longer than one event may take is served to its end, in the order
// of each flow, and the flows of one batch do not mix.
func TestLongQueue(t *testing.T) {
	const flows, each = 7, 3*perEvent/7 + 1
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, b.addr)
	clients := dialAll(t, p.addr, flows)
	release := p.block()
	for j := range each {
		for i, c := range clients {
			c.send(fmt.Sprintf("%d %d", i, j))
		}
	}
	release()
	from := b.inOrder(t, p, flows, each)
	// And back: one flow's answers, more than an event may take.
	release = p.block()
	for j := range 2 * perEvent {
		if _, err := b.WriteToUDPAddrPort(fmt.Append(nil, j), from[0]); err != nil {
			t.Fatal(err)
		}
	}
	release()
	for j := range 2 * perEvent {
		if a := clients[0].receive(); a != fmt.Sprint(j) {
			t.Fatalf("answer %d = %q", j, a)
		}
	}
}

// A datagram costs no allocation, whatever way it goes.
func TestNoAllocation(t *testing.T) {
	testbed.Native(t)
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
	testbed.Check(t, unix.Sendto(raw, header, 0, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
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
	from := b.question(t)
	sh := p.shards[0]
	onLoop(t, sh, func() { sh.ages.first.key.local = netip.MustParseAddr("192.0.2.1") })
	b.answer(t, "a", from)
	eventually(t, "the answer is dropped", func() bool { s := p.Stats(); return s.Unreachable == 1 && s.SendErrors == 1 })
	onLoop(t, sh, func() { sh.ages.first.key.local = netip.MustParseAddr("127.0.0.1") })
	b.answer(t, "b", from)
	if a := c.receive(); a != "b" {
		t.Errorf("answer = %q", a)
	}
}
