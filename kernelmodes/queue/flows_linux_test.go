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

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
	"github.com/sluice-lb/sluice/internal/shares"
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
	view, _ := n.Balancer.View(s.ID)
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
				n.Read() // as often as may be: what it finds may end meanwhile
			}
		})
	}
	all.Wait()
	n.awaits(&s, 2, 2, 2)
	got := n.Stats()
	// A SYN that comes before conntrack knows that the connection before from that port has ended goes where that went.
	const again = clients * each / 100
	if got.Flows.Known != int64(len(open)) || got.Flows.Refused+got.Flows.Silent+got.Flows.Lost > 0 ||
		got.Chosen+again < clients*each+uint64(len(open)) || got.Queues.Missed > 0 {
		t.Errorf("%+v, want %d known, %d chosen, and no failure", got, len(open), clients*each+len(open))
	}
	t.Logf("%+v", got)
}

// TestGoneWhileRead: what ends while the table is read is not in flight because the reading has it still.
func TestGoneWhileRead(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 1})
	for _, p := range []lb.Protocol{lb.TCP, lb.UDP} {
		s := n.echoing(p, false, lb.Policies{Scheduler: "lc"})
		n.Sync(s)
		all := n.open(&s, 1)
		n.awaits(&s, 1)
		var old conntrack.Entry
		n.Node.DoT(t, func() (err error) {
			old, _, err = new(conntrack.Conn).Find(p, netip.MustParseAddrPort(all[0].LocalAddr().String()),
				s.Addresses[0].Addr)
			return err
		})
		testbed.Check(t, all[0].Close())
		n.Node.Run(t, "conntrack", "-D", "-p", strings.ToLower(p.String()))
		n.awaits(&s, 0)
		if n.readEntry(&old, newReading(1<<31)); n.inFlight(&s)[0] != 1 {
			t.Errorf("%s: what a reading has is not in flight: %+v", p, old)
		}
		heard := false
		for range 100 { // but while another reading begins or ends
			r := newReading(1 << 31)
			n.following.reading.Store(r)
			n.handle(&conntrack.Event{Entry: old, Kind: conntrack.Destroy})
			if heard = n.following.reading.CompareAndSwap(r, nil); heard {
				n.readEntry(&old, r)
				break
			}
		}
		if !heard || n.inFlight(&s)[0] != 0 || n.Stats().Flows.Known != 0 {
			t.Errorf("%s: in flight is what has ended: %+v", p, n.Stats())
		}
	}
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

// TestLostEvents: after events were lost nothing stays in flight that has ended.
func TestLostEvents(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 3})
	s := n.echoing(lb.TCP, false, counting)
	n.Sync(s)
	all := n.open(&s, 9)
	n.awaits(&s, 3, 3, 3)
	testbed.Check(t, n.following.events.Only(nil)) // nothing comes
	for _, c := range all[:8] {
		testbed.Check(t, c.Close())
	}
	testbed.Eventually(t, "all have ended", func() bool { return n.inState(false, conntrack.TCPTimeWait) == 8 })
	n.Node.Run(t, "conntrack", "-D", "-p", "tcp", "--state", "TIME_WAIT")
	if got := n.inFlight(&s); !slices.Equal(got, []uint64{3, 3, 3}) {
		t.Errorf("in flight without events: %d", got)
	}
	testbed.Check(t, n.following.events.All())
	n.handle(&conntrack.Event{Kind: conntrack.Lost})
	last := all[8:]
	n.awaits(&s, uint64(len(n.at(last, &s, 0))), uint64(len(n.at(last, &s, 1))), uint64(len(n.at(last, &s, 2))))
}

// TestNoEvents: where the kernel has none flows are chosen for, and not in flight.
func TestNoEvents(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 3})
	testbed.Check(t, n.Server.Close())
	testbed.Check(t, n.Node.Sysctl("net.netfilter.nf_conntrack_events", "0"))
	n.startAgain()
	if err := n.Cannot(); err != errNoEvents {
		t.Errorf("it says %v", err)
	}
	s := n.echoing(lb.TCP, false, counting)
	n.Sync(s)
	n.open(&s, 3)
	n.awaits(&s, 0, 0, 0)
	n.answered(3)
}

// TestReusedPorts: a flow that has the ports of one before is one in flight, whatever is heard of that.
func TestReusedPorts(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 1})
	s := n.echoing(lb.TCP, false, counting)
	n.Sync(s)
	testbed.Check(t, n.following.events.Only(nil)) // what comes is said below
	client := netip.AddrPortFrom(n.Client.Addr4, 4000)
	packet := &nfqueue.Packet{Protocol: unix.IPPROTO_TCP, Client: client, Asked: s.Addresses[0].Addr}
	hear := func(kind conntrack.Kinds, id uint32, state conntrack.State, status conntrack.Status, want uint64) {
		t.Helper()
		n.handle(&conntrack.Event{Kind: kind, Entry: conntrack.Entry{Protocol: lb.TCP, ID: id, State: state, Status: status,
			Flow: conntrack.Flow{Src: client, Dst: s.Addresses[0].Addr, Replies: s.Backends[0].Addr}}})
		if got := n.inFlight(&s); got[0] != want {
			t.Errorf("after kind %d in state %d of entry %d: %d in flight, want %d", kind, state, id, got[0], want)
		}
	}
	n.decide(packet)
	hear(conntrack.Update, 1, conntrack.TCPSynRecv, conntrack.SeenReply, 1)
	n.decide(packet) // before it was heard that the first has ended
	hear(conntrack.Update, 1, conntrack.TCPTimeWait, conntrack.SeenReply, 1)
	hear(conntrack.Destroy, 1, conntrack.TCPTimeWait, conntrack.SeenReply, 1)
	hear(conntrack.Update, 2, conntrack.TCPSynRecv, conntrack.SeenReply, 1)
	hear(conntrack.Destroy, 1, conntrack.TCPTimeWait, conntrack.SeenReply, 1)
	hear(conntrack.Update, 2, conntrack.TCPTimeWait, conntrack.SeenReply, 0)
	n.decide(packet)
	hear(conntrack.Destroy, 2, conntrack.TCPTimeWait, conntrack.SeenReply, 1)
	hear(conntrack.Destroy, 3, conntrack.TCPClose, 0, 0) // refused
	if got := n.Stats().Flows; got.Refused != 1 || got.Answered != 2 || got.Known != 0 {
		t.Errorf("%+v", got)
	}
}

// TestShare: neither a Service nor a client can have all flows that there is room for, and what has no room is not in
// flight; it goes on.
func TestShare(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 1})
	lc := lb.Policies{Scheduler: "lc"}
	one, other := n.echoing(lb.UDP, false, lc), n.echoing(lb.UDP, true, lc)
	one.Name, other.Name = "one", "other"
	n.Sync(one, other)
	ask := func(s *lb.Service, client netip.Addr, count int) {
		for i := range count {
			v := n.decide(&nfqueue.Packet{Protocol: netfilter.ProtocolNumber(s.Protocol),
				Client: netip.AddrPortFrom(client, uint16(i)), Asked: s.Addresses[0].Addr})
			if v.Mark == 0 {
				t.Fatalf("flow %d of %s has no endpoint", i, client)
			}
		}
	}
	has := func(s *lb.Service, percent, of uint64) uint64 {
		t.Helper()
		got := n.inFlight(s)[0]
		if want := of * percent / 100; got > want*101/100 || got < want*95/100 {
			t.Errorf("%s: %d in flight, want %d of %d", s.Name, got, want, of)
		}
		return got
	}
	n.following.shares = shares.Shares{Service: 80, Client: 10}
	ask(&one, n.Client.Addr4, 1<<16)
	first := has(&one, 10, manyFlows)
	addr := n.Client.Addr4
	for range 64 {
		addr = addr.Next()
		ask(&one, addr, 1<<14)
	}
	all := has(&one, 80, manyFlows)
	if lacks := n.Stats().Flows.Lacks; lacks.Client < 1<<16-first || lacks.Service == 0 || lacks.Room > 0 {
		t.Errorf("%+v", lacks)
	}
	if view, _ := n.Balancer.View(one.ID); view.Stats.OverShare != n.Stats().Flows.Lacks.Service {
		t.Errorf("%d times over its share, want %+v", view.Stats.OverShare, n.Stats().Flows.Lacks)
	}
	addr = n.Client.Addr6
	ask(&other, addr, 1<<14)
	has(&other, 10, manyFlows-all)
	next := addr.As16()
	next[15]++
	before := n.inFlight(&other)[0]
	ask(&other, netip.AddrFrom16(next), 100) // of the same host, as far as is known
	if got := n.inFlight(&other)[0] - before; got > 50 {
		t.Errorf("a client has %d flows more by another address", got)
	}
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
	var all [3]*testbed.Talker
	for i := range all { // from a pod: what is masqueraded gets another port
		c, err := n.Pods[3].Dial(t.Context(), "tcp", s.Addresses[0].Addr.String())
		testbed.Check(t, err)
		defer c.Close()
		all[i] = &testbed.Talker{T: t, Conn: c}
		all[i].Echoes()
	}
	testbed.Eventually(t, "their answers are heard of", func() bool { return n.Stats().Flows.Answered == 3 })
	testbed.Check(t, n.following.events.Only(nil)) // it is not heard of
	n.Node.Run(t, "conntrack", "-D", "-p", "tcp")
	for _, c := range all {
		c.Echoes()
	}
	testbed.Check(t, n.following.events.All())
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
	if got := n.Balancer.OutlierStats(); got.Active+int64(got.Spared+got.Overflow) > 0 || n.Stats().Flows.Refused > 0 {
		t.Errorf("%+v; %+v; want no failure", got, n.Stats().Flows)
	}
}

// TestLateEnds: where the ports of a flow of UDP are used again before its end is heard of, that does not end the new
// one, be it at the same endpoint or at another.
func TestLateEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 2})
	s := n.echoing(lb.UDP, false, lb.Policies{Scheduler: "lc"})
	packet := &nfqueue.Packet{Protocol: unix.IPPROTO_UDP, Client: lab.At(n.Client.Addr4, 1000), Asked: s.Addresses[0].Addr}
	key := keyOf(lb.UDP, packet.Client, packet.Asked)
	begin := func() netip.AddrPort {
		n.decide(packet)
		one, _ := n.following.find(&key)
		return one.choice.Backend()
	}
	ends := func(id uint32, at netip.AddrPort, left int64) {
		t.Helper()
		n.handle(&conntrack.Event{Kind: conntrack.Destroy, Entry: conntrack.Entry{Protocol: lb.UDP, ID: id,
			Flow: conntrack.Flow{Src: packet.Client, Dst: packet.Asked, Replies: at}, Status: conntrack.SeenReply}})
		if known := n.Stats().Flows.Known; known != left {
			t.Errorf("%d flows are left after the end of %d, want %d", known, id, left)
		}
	}
	n.Sync(s)
	first, second := begin(), begin()
	ends(1, first, 1)
	ends(2, second, 0)
	s.Backends = s.Backends[:1]
	n.Sync(s)
	first, second = begin(), begin()
	if first != second {
		t.Fatalf("%s and %s are chosen of one", first, second)
	}
	ends(3, first, 1)
	ends(4, second, 0)
	ends(5, begin(), 0)
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
