package queue

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// asks has clients ask in the background, one after the other has its place, and returns what each gets.
func (n *node) asks(s *lb.Service, clients int) (served []chan error, conns []net.Conn) {
	n.T.Helper()
	before := n.Stats().Holds.Held
	conns = make([]net.Conn, clients)
	for i := range clients {
		c := make(chan error, 1)
		served = append(served, c)
		go func() {
			conn, err := n.Client.Dial(n.T.Context(), "tcp", s.Addresses[0].Addr.String())
			if conns[i] = conn; err == nil { // else the collector closes what the test does not keep
				n.T.Cleanup(func() { _ = conn.Close() })
			}
			c <- err
		}()
		testbed.Eventually(n.T, "it is held", func() bool { return n.Stats().Holds.Held == before+int64(i+1) })
	}
	return served, conns
}

// TestHold: clients of a Service without endpoints wait, and are served in the order in which they came as soon as
// there is one. What they send meanwhile is no other flow.
func TestHold(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(lab.Family(v6), func(t *testing.T) {
			t.Parallel()
			const clients = 8
			n := newNode(t, testbed.Config{Pods: 1})
			s := lab.Simple("web", lab.VIP(v6, 1).String(), 80, lb.TCP)
			s.Policies = &lb.Policies{Hold: int64(testbed.Patience)}
			n.Sync(s)
			served, conns := n.asks(&s, clients)
			testbed.Eventually(t, "each has sent again", func() bool { return repeated(t, n.Client) >= clients })

			b := lab.Backend(n.Pods[0], v6, 8080)
			ln, err := n.Pods[0].Listen(t.Context(), "tcp", b.Addr.String())
			testbed.Check(t, err)
			defer ln.Close()
			s.Backends = append(s.Backends, b)
			n.Sync(s)
			for i := range clients {
				testbed.Check(t, <-served[i])
				c, err := ln.Accept()
				testbed.Check(t, err)
				defer c.Close()
				defer conns[i].Close()
				_, err = conns[i].Write([]byte{byte(i)})
				testbed.Check(t, err)
				got := make([]byte, 1)
				testbed.Check(t, c.SetDeadline(time.Now().Add(testbed.Patience)))
				if _, err := io.ReadFull(c, got); err != nil || int(got[0]) != i {
					t.Fatalf("client %d was accepted, %v; want %d", got[0], err, i)
				}
			}
			n.awaits(&s, clients)
			if got := n.Stats(); got.Holds.All != clients || got.Holds.Held != 0 || got.Holds.Expired != 0 ||
				got.Chosen != clients || got.Undecided != 0 || got.Queues.Late != 0 {
				t.Errorf("%+v, want %d held and chosen for", got, clients)
			}
			if view, _ := n.Balancer.View(s.ID); view.Stats.Held != 0 || view.Stats.NoBackend != 0 {
				t.Errorf("%+v: none waits, and none was refused", view.Stats)
			}
		})
	}
}

// TestHoldDatagrams: so do clients of UDP, with their first datagram.
func TestHoldDatagrams(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 1})
	s := lab.Simple("dns", lab.VIP(false, 1).String(), 53, lb.UDP)
	s.Policies = &lb.Policies{Hold: int64(testbed.Patience)}
	n.Sync(s)
	c := testbed.NewUDPClient(t, n.Client, s.Addresses[0].Addr.String())
	for i, text := range []string{"first", "second"} {
		_, err := io.WriteString(c, text)
		testbed.Check(t, err)
		testbed.Eventually(t, "the "+text+" is decided", func() bool { return n.Stats().Queues.Packets == uint64(i+1) })
	}
	b := lab.Backend(n.Pods[0], false, 8053)
	testbed.Keep(t)(n.Pods[0].EchoUDP(b.Addr.String()))
	s.Backends = append(s.Backends, b)
	n.Sync(s)
	testbed.Check(t, c.SetDeadline(time.Now().Add(testbed.Patience)))
	buffer := make([]byte, 64)
	got, err := c.Read(buffer)
	if testbed.Check(t, err); string(buffer[:got]) != "first" {
		t.Errorf("answered %q, want the first", buffer[:got])
	}
	if got := n.Stats().Holds; got.All != 1 || got.Held != 0 {
		t.Errorf("%+v, want one", got)
	}
}

// TestHoldShare: one client cannot have all packets that may stay, nor can long ones, and others go on meanwhile.
func TestHoldShare(t *testing.T) {
	t.Parallel()
	const many = 500
	n := newNode(t, testbed.Config{Pods: 1})
	n.Shares.Client = 10
	s := lab.Simple("dns", lab.VIP(false, 1).String(), 53, lb.UDP)
	s.Policies = &lb.Policies{Hold: int64(testbed.Patience), HoldConnections: 2 * manyHeld}
	served := lab.Simple("served", lab.VIP(false, 2).String(), 53, lb.UDP, n.Serving(1, lb.UDP, false, 8054)...)
	n.Sync(s, served)
	ask := func(from *testbed.Host, bytes int) {
		c, err := from.Dial(t.Context(), "udp", s.Addresses[0].Addr.String())
		testbed.Check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = c.Write(make([]byte, bytes))
		testbed.Check(t, err)
	}
	for range many {
		ask(n.Client, 1)
	}
	testbed.Eventually(t, "each is judged", func() bool {
		got := n.Stats().Holds
		return got.All+got.Lacks.Client == many
	})
	if got := n.Stats().Holds; got.Held != manyHeld/10 {
		t.Errorf("%+v, want %d of one client", got, manyHeld/10)
	}
	ask(n.Pods[0], 1)
	testbed.Eventually(t, "another client has its place", func() bool { return n.Stats().Holds.Held == manyHeld/10+1 })
	ask(n.Pods[0], 4*longestHeld)
	testbed.Eventually(t, "a long packet does not stay", func() bool { return n.Stats().Holds.Lacks.Room == 1 })
	if got := lab.Ask(n.Client, lb.UDP, served.Addresses[0].Addr); !strings.HasPrefix(got, n.Pods[0].Name) {
		t.Errorf("another Service: %q", got)
	}
}

// TestHoldEnds: a client that has waited for long enough is refused, and so are one that does not wait, since its
// Service does not request it or as many do as may, and those that wait when the server ends.
func TestHoldEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 1})
	const hold = 300 * time.Millisecond
	plain := lab.Simple("plain", lab.VIP(false, 1).String(), 80, lb.TCP)
	brief, long := plain, plain
	at := func(i int) []lb.Address {
		return []lb.Address{{Addr: netip.AddrPortFrom(lab.VIP(false, i), 80)}}
	}
	brief.Name, brief.Addresses, brief.Policies = "brief", at(2), &lb.Policies{Hold: int64(hold)}
	long.Name, long.Addresses = "long", at(3)
	long.Policies = &lb.Policies{Hold: int64(time.Hour), HoldConnections: 1}
	n.Sync(plain, brief, long)
	refused := func(s *lb.Service) (after time.Duration) {
		t.Helper()
		begun := time.Now()
		got := n.Client.Ask(strings.ToLower(s.Protocol.String()), s.Addresses[0].Addr.String(), testbed.Patience)
		if got != testbed.Refused {
			t.Errorf("%s: %q, want refused", s.Name, got)
		}
		return time.Since(begun)
	}
	refused(&plain)
	if after := refused(&brief); after < hold {
		t.Errorf("refused after %v, want %v", after, hold)
	}
	if got := n.Stats().Holds; got.All != 1 || got.Expired != 1 || got.Held != 0 {
		t.Errorf("%+v, want one that has expired", got)
	}
	served, _ := n.asks(&long, 1)
	refused(&long)
	if got := n.Stats().Holds; got.All != 2 || got.Full != 1 || got.Held != 1 {
		t.Errorf("%+v, want one that waits and one that may not", got)
	}
	testbed.Check(t, n.Server.Close())
	if err := <-served[0]; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the end of the server: %v, want refused", err)
	}
	if view, _ := n.Balancer.View(long.ID); view.Stats.Held != 0 {
		t.Errorf("%d are held after the end", view.Stats.Held)
	}
}
