package queue

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// counting are policies by which it matters what is in flight.
var counting = lb.Policies{Scheduler: "lc"}

// echoing is a Service of all pods, which echo.
func (n *node) echoing(p lb.Protocol, v6 bool, policies lb.Policies) lb.Service {
	n.T.Helper()
	s := lab.Simple(strings.ToLower(p.String())+testbed.Family(v6), testbed.VIP(v6, 1).String(), uint16(80+p), p)
	s.Policies = &policies
	for _, pod := range n.Pods {
		b := lab.Backend(pod, v6, 8080)
		if p == lb.UDP {
			testbed.Keep(n.T)(pod.EchoUDP(b.Addr.String()))
		} else {
			testbed.Keep(n.T)(pod.EchoTCP(b.Addr.String()))
		}
		s.Backends = append(s.Backends, b)
	}
	return s
}

// dial opens a connection to a Service, or a flow with an answer.
func (n *node) dial(s *lb.Service, within time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(n.T.Context(), within)
	defer cancel()
	c, err := n.Client.Dial(ctx, strings.ToLower(s.Protocol.String()), s.Addresses[0].Addr.String())
	if err == nil {
		n.T.Cleanup(func() { _ = c.Close() })
		(&testbed.Talker{T: n.T, Conn: c}).Echoes()
	}
	return c, err
}

func (n *node) open(s *lb.Service, count int) (all []net.Conn) {
	n.T.Helper()
	for range count {
		c, err := n.dial(s, testbed.Patience)
		testbed.Check(n.T, err)
		all = append(all, c)
	}
	return all
}

// inFlight returns what is in flight at each backend of a Service.
func (n *node) inFlight(s *lb.Service) (all []uint64) {
	view, _ := n.Balancer.Counters().View(s.ID)
	for _, b := range view.Stats.Backends {
		all = append(all, b.InFlight)
	}
	return all
}

// awaits waits until so many are in flight at the backends.
func (n *node) awaits(s *lb.Service, want ...uint64) {
	n.T.Helper()
	defer func() {
		if got := n.inFlight(s); !slices.Equal(got, want) {
			n.T.Logf("in flight: %d, want %d; %+v", got, want, n.Stats())
		}
	}()
	testbed.Eventually(n.T, "in flight is what it should be", func() bool { return slices.Equal(n.inFlight(s), want) })
}

// at returns those of some connections that a pod has.
func (n *node) at(all []net.Conn, s *lb.Service, pod int) (some []net.Conn) {
	n.T.Helper()
	conn := new(conntrack.Conn)
	n.Node.DoT(n.T, func() error {
		for _, c := range all {
			e, _, err := conn.Find(s.Protocol, netip.MustParseAddrPort(c.LocalAddr().String()), s.Addresses[0].Addr)
			if err != nil {
				return err
			}
			if e.Replies == s.Backends[pod].Addr {
				some = append(some, c)
			}
		}
		return nil
	})
	return some
}

// TestLeastConnections: what is open counts until it ends, so that the next flows go where there are fewest. A
// connection that has ended in peace does not count though its entry stays.
func TestLeastConnections(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 3})
	for _, p := range []lb.Protocol{lb.TCP, lb.UDP} {
		for _, v6 := range []bool{false, true} {
			s := n.echoing(p, v6, lb.Policies{Scheduler: "lc"})
			n.Sync(s)
			all := n.open(&s, 12)
			n.awaits(&s, 4, 4, 4)
			gone := n.at(all, &s, 1)
			for _, c := range gone {
				testbed.Check(t, c.Close())
				if p == lb.UDP {
					_, port, _ := net.SplitHostPort(c.LocalAddr().String())
					family := strings.ToLower(testbed.Family(v6))
					n.Node.Run(t, "conntrack", "-D", "-p", "udp", "-f", family, "--sport", port)
				}
			}
			n.awaits(&s, 4, 0, 4)
			more := n.open(&s, 4)
			if got := len(n.at(more, &s, 1)); got != 4 {
				t.Errorf("%s: %d of 4 new flows are where none was, in flight %d", s.ID, got, n.inFlight(&s))
			}
			n.awaits(&s, 4, 4, 4)
		}
	}
}

// TestNoLimits: this path neither limits connections nor has clients wait, which user space does.
func TestNoLimits(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 2})
	for _, p := range []lb.Protocol{lb.TCP, lb.UDP} {
		s := n.echoing(p, false, lb.Policies{Scheduler: "lc", MaxEndpointConnections: 1, MaxConnections: 1,
			MaxClientConnections: 1, MaxClientConnectionRate: 1, Hold: int64(time.Hour)})
		n.Sync(s)
		n.open(&s, 6)
		n.awaits(&s, 3, 3)
		s.Backends = nil
		n.Sync(s)
		if got := lab.Ask(n.Client, p, s.Addresses[0].Addr); got != testbed.Refused {
			t.Errorf("%s without an endpoint: %q, want it refused", p, got)
		}
	}
}

// TestSCTP: an association counts until it ends, and one whose endpoint does not answer gets another.
func TestSCTP(t *testing.T) {
	t.Parallel()
	ends := testbed.NewSCTPEnds(t)
	n := newNode(t, testbed.Config{Pods: 2})
	ends.Echo(t, n.Pods[0])
	for _, v6 := range []bool{false, true} {
		s := lab.Simple("sctp"+testbed.Family(v6), testbed.VIP(v6, 1).String(), uint16(ends.EchoPort), lb.SCTP)
		for _, pod := range n.Pods {
			s.Backends = append(s.Backends, lab.Backend(pod, v6, uint16(ends.EchoPort)))
		}
		n.Sync(s)
		before := n.Stats().Flows
		for i := range 2 { // both have a turn
			c, err := ends.Open(n.Client, s.Addresses[0].Addr)
			testbed.Check(t, err)
			testbed.Check(t, c.Ask(fmt.Sprint("association ", i)))
			n.awaits(&s, 1, 0)
			c.Close()
			n.awaits(&s, 0, 0)
		}
		got := n.Stats().Flows
		if got.Silent-before.Silent != 1 || got.Retried-before.Retried != 1 || got.Answered-before.Answered != 2 {
			t.Errorf("%+v, and before %+v; want one silent, retried, and two answered", got, before)
		}
	}
}

// TestChurn: of many connections, reset or ended in peace, whose client uses few ports again and again, none is left in
// flight but those that are open.
func TestChurn(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 3})
	n.Balancer.Outlier = lb.DefaultOutlier
	s := n.echoing(lb.TCP, false, lb.Policies{Scheduler: "lc"})
	n.Sync(s)
	open := n.open(&s, 6)
	testbed.Check(t, n.Client.Sysctl("net.ipv4.ip_local_port_range", "40000 40199"))
	const clients, each = 4, 500
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for i := range each {
				c, err := n.Client.Dial(t.Context(), "tcp", s.Addresses[0].Addr.String())
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				if i%50 > 0 { // else it ends in peace, and its port has to rest
					_ = c.(*net.TCPConn).SetLinger(0)
				}
				_ = c.Close()
				n.RequestReading() // as often as may be: what it finds may end meanwhile
			}
		})
	}
	all.Wait()
	n.awaits(&s, 2, 2, 2)
	got := n.Stats()
	// A SYN that comes before conntrack knows that the connection before from that port has ended goes where that went.
	const again = clients * each / 100
	if got.Flows.Known != int64(len(open)) || got.Flows.Refused+got.Flows.Silent+n.Watch.Stats().Lost > 0 ||
		got.Chosen+again < clients*each+uint64(len(open)) || got.Queues.Missed > 0 {
		t.Errorf("%+v, want %d known, %d chosen, and no failure", got, len(open), clients*each+len(open))
	}
	t.Logf("%+v", got)
}

// TestFlowsCross: a server that starts knows what is open, which another one has chosen for, or the kernel.
func TestFlowsCross(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 3})
	for _, p := range []lb.Protocol{lb.TCP, lb.UDP} {
		for _, v6 := range []bool{false, true} {
			s := n.echoing(p, v6, lb.Policies{Scheduler: "lc"})
			n.Sync(s)
			all := n.open(&s, 6)
			n.awaits(&s, 2, 2, 2)
			testbed.Check(t, n.Server.Close())
			n.awaits(&s, 0, 0, 0)
			all = append(all, n.open(&s, 3)...)
			n.startAgain()
			n.awaits(&s, uint64(len(n.at(all, &s, 0))), uint64(len(n.at(all, &s, 1))), uint64(len(n.at(all, &s, 2))))
			if p == lb.TCP { // their ends are heard of
				for _, c := range all[:6] {
					testbed.Check(t, c.Close())
				}
				last := all[6:]
				n.awaits(&s, uint64(len(n.at(last, &s, 0))), uint64(len(n.at(last, &s, 1))), uint64(len(n.at(last, &s, 2))))
			}
		}
	}
}

// unheard lets conntrack report nothing of entries that are made until the returned function is called.
func (n *node) unheard() (end func()) {
	n.T.Helper()
	const events = "net.netfilter.nf_conntrack_events"
	testbed.Check(n.T, n.Node.Sysctl(events, "0"))
	return func() { testbed.Check(n.T, n.Node.Sysctl(events, "1")) }
}

// TestUnheardEnds: what has ended without an event is not in flight once the table is read.
func TestUnheardEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 3})
	s := n.echoing(lb.TCP, false, counting)
	n.Sync(s)
	n.unheard()
	all := n.open(&s, 9)
	n.awaits(&s, 3, 3, 3)
	for _, c := range all[:8] {
		testbed.Check(t, c.Close())
	}
	testbed.Eventually(t, "all have ended", func() bool { return n.inState(false, conntrack.TCPTimeWait) == 8 })
	n.Node.Run(t, "conntrack", "-D", "-p", "tcp", "--state", "TIME_WAIT")
	last := all[8:]
	testbed.Eventually(t, "the table is read", func() bool {
		n.RequestReading() // it is passed over that a flow has no entry if it is young
		return n.Stats().Flows.Known == 1
	})
	n.awaits(&s, uint64(len(n.at(last, &s, 0))), uint64(len(n.at(last, &s, 1))), uint64(len(n.at(last, &s, 2))))
}

// TestNoEvents: where the kernel has none flows are chosen for, and not in flight.
func TestNoEvents(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 3})
	testbed.Check(t, n.Server.Close())
	testbed.Check(t, n.Node.Sysctl("net.netfilter.nf_conntrack_events", "0"))
	n.startAgain()
	if err := n.Cannot(); err == nil || !strings.Contains(err.Error(), "nf_conntrack_events is 0") {
		t.Errorf("it says %v", err)
	}
	s := n.echoing(lb.TCP, false, counting)
	n.Sync(s)
	n.open(&s, 3)
	n.awaits(&s, 0, 0, 0)
	n.answered(3)
}

// TestStray: a packet of a connection that conntrack has forgotten goes where the connection did, if the connection is
// followed, and no endpoint fails by it.
func TestStray(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 4})
	n.Balancer.Outlier = lb.DefaultOutlier
	testbed.Check(t, n.Node.Sysctl("net.netfilter.nf_conntrack_acct", "1"))
	s := n.echoing(lb.TCP, false, lb.Policies{Scheduler: "lc"})
	s.Backends = s.Backends[:3]
	n.Sync(s)
	end := n.unheard()
	var all [3]*testbed.Talker
	for i := range all { // from a pod: what is masqueraded gets another port
		c, err := n.Pods[3].Dial(t.Context(), "tcp", s.Addresses[0].Addr.String())
		testbed.Check(t, err)
		defer c.Close()
		all[i] = &testbed.Talker{T: t, Conn: c}
		all[i].Echoes()
	}
	testbed.Eventually(t, "their answers are seen", func() bool { return n.Stats().Flows.Answered == 3 })
	n.Node.Run(t, "conntrack", "-D", "-p", "tcp")
	for _, c := range all {
		c.Echoes()
	}
	end()
	if got := n.Stats(); got.Strays != 3 || got.Chosen != 3 {
		t.Errorf("%+v, want three strays", got)
	}
	raw := n.raw(n.Client)
	const ack, count = 16, 30
	for i := range uint16(count) {
		n.send(raw, netip.AddrPortFrom(n.Client.Addr4, 20000+i), s.Addresses[0].Addr, ack, 1)
	}
	testbed.Eventually(t, "each is asked about", func() bool { return n.Stats().Strays >= 3+count })
	testbed.Eventually(t, "each is reset", func() bool {
		return !strings.Contains(n.Node.Run(t, "conntrack", "-L", "-p", "tcp"), "sport=200")
	})
	n.open(&s, 3)
	if got := n.Balancer.Health().Stats(); got.Active+int64(got.Spared+got.Overflow) > 0 || n.Stats().Flows.Refused > 0 {
		t.Errorf("%+v; %+v; want no failure", got, n.Stats().Flows)
	}
}

// TestDecideDoesNotAllocate: deciding about a packet leaves nothing to the garbage collector.
func TestDecideDoesNotAllocate(t *testing.T) {
	n := newNode(t, testbed.Config{Pods: 1})
	testbed.Check(t, n.Server.Close()) // who looks at flows allocates
	tcp, udp := n.echoing(lb.TCP, false, counting), n.echoing(lb.UDP, false, counting)
	for _, x := range []struct {
		lb.Service
		number   uint8
		policies lb.Policies
	}{
		{tcp, unix.IPPROTO_TCP, lb.Policies{Scheduler: "lc"}},
		{udp, unix.IPPROTO_UDP, lb.Policies{Scheduler: "lc"}},
		{udp, unix.IPPROTO_UDP, lb.Policies{}}, // it is not followed
	} {
		s := x.Service
		s.Policies = &x.policies
		n.Sync(s)
		packet := &nfqueue.Packet{Protocol: x.number, Client: netip.AddrPortFrom(n.Client.Addr4, 1),
			Asked: s.Addresses[0].Addr}
		one := func() {
			packet.Client = netip.AddrPortFrom(n.Client.Addr4, packet.Client.Port()+1)
			n.decide(packet)
		}
		for range 1 << 16 {
			one()
		}
		if got := testing.AllocsPerRun(1000, one); got != 0 {
			t.Errorf("%s: %v allocations", s.ID, got)
		}
	}
}
