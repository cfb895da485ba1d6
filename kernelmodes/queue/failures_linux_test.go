package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// filtered has a host drop TCP of a family in a chain, until the returned function is called.
func (n *node) filtered(h *testbed.Host, v6 bool, chain ...string) (end func()) {
	n.T.Helper()
	program := "iptables-nft"
	if v6 {
		program = "ip6tables-nft"
	}
	rule := append(chain, "-p", "tcp", "--dport", "8080", "-j", "DROP")
	h.Run(n.T, program, append([]string{"-I"}, rule...)...)
	return sync.OnceFunc(func() { h.Run(n.T, program, append([]string{"-D"}, rule...)...) })
}

// failing is a node of three pods, of which the second fails, and a Service of them.
func failing(t *testing.T, v6, refuses bool, policies lb.Policies) (n *node, s lb.Service, mend func()) {
	t.Helper()
	n = newNode(t, testbed.Config{Pods: 3})
	n.Balancer.Outlier = lb.DefaultOutlier
	s = lab.Simple("web", testbed.VIP(v6, 1).String(), 80, lb.TCP)
	s.Policies = &policies
	for i, pod := range n.Pods {
		b := lab.Backend(pod, v6, 8080)
		s.Backends = append(s.Backends, b)
		if i == 1 && refuses {
			continue
		}
		testbed.Keep(t)(pod.EchoTCP(b.Addr.String()))
	}
	mend = func() {}
	if !refuses {
		mend = n.filtered(n.Pods[1], v6, "INPUT")
	}
	n.Sync(s)
	return n, s, mend
}

// TestSilentEndpoint: of three endpoints one drops packets. Its clients wait for one retransmission of their own and
// get another endpoint; after five failures none meets it, and the others have exact turns.
func TestSilentEndpoint(t *testing.T) {
	for i := range 4 {
		v6, policies := i%2 == 1, []lb.Policies{counting, {}}[i/2]
		counts := policies.CountsInFlight()
		t.Run(fmt.Sprintf("%s/counts=%v", testbed.Family(v6), counts), func(t *testing.T) {
			t.Parallel()
			n, s, _ := failing(t, v6, false, policies)
			var all []net.Conn
			for i := range 15 {
				begun := time.Now()
				all = append(all, n.open(&s, 1)...)
				if took := time.Since(begun); took > 1900*time.Millisecond { // a second retransmission comes after 3 s
					t.Errorf("client %d waited for %v", i, took)
				}
			}
			if got := n.Stats().Flows; got.Silent != 5 || got.Retried != 5 || n.Balancer.Health().Stats().Active != 1 {
				t.Fatalf("%+v, %+v; want 5 silent, and one ejected", got, n.Balancer.Health().Stats())
			}
			all = append(all, n.open(&s, 100)...)
			if got := n.Stats().Flows; got.Silent != 5 || repeated(t, n.Client) != 5 {
				t.Errorf("%+v, and %d SYNs were sent again, want 5", got, repeated(t, n.Client))
			}
			if !counts {
				n.awaits(&s, 0, 0, 0)
			} else if got := n.inFlight(&s); got[0]+got[2] != 115 || got[1] != 0 || max(got[0], got[2])-min(got[0], got[2]) > 5 {
				t.Errorf("in flight %d, want no one at the second, and the others equal", got)
			}
			for _, c := range all {
				testbed.Check(t, c.Close())
			}
			n.awaits(&s, 0, 0, 0)
		})
	}
}

// TestDenied: a client that every endpoint is silent to, as a policy of the network has it, has none ejected that
// serves others.
func TestDenied(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 4})
	n.Balancer.Outlier = lb.DefaultOutlier
	n.Balancer.Outlier.Interval = int64(time.Hour)
	s := n.echoing(lb.TCP, false, lb.Policies{})
	s.Backends = s.Backends[:3]
	n.Sync(s)
	for _, pod := range n.Pods[:3] {
		pod.Run(t, "iptables-nft", "-I", "INPUT", "-s", n.Pods[3].Addr4.String(), "-p", "tcp", "-j", "DROP")
	}
	raw, sent := n.raw(n.Pods[3]), uint16(0)
	denied := func(count uint16) {
		t.Helper()
		for range count {
			n.send(raw, netip.AddrPortFrom(n.Pods[3].Addr4, 20000+sent), s.Addresses[0].Addr, 2, 0)
			sent++
		}
		testbed.Eventually(t, "each is silent", func() bool { return n.Stats().Flows.Silent == uint64(sent) })
	}
	denied(6)
	n.open(&s, 1)
	testbed.Eventually(t, "the answer is heard of", func() bool { return n.Stats().Flows.Answered == 1 })
	denied(30)
	if got := n.Balancer.Health().Stats(); got != (balancer.OutlierStats{}) {
		t.Errorf("%+v, want none ejected, nor about to be", got)
	}
}

// TestRefusingEndpoint: of three endpoints one refuses. After five refusals none meets it, if the kernel says who has.
func TestRefusingEndpoint(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(testbed.Family(v6), func(t *testing.T) {
			t.Parallel()
			n, s, _ := failing(t, v6, true, lb.Policies{})
			testbed.Check(t, n.Node.Sysctl("net.netfilter.nf_conntrack_acct", "1"))
			ask := func(count int) (refused int) {
				for range count {
					if _, err := n.dial(&s, testbed.Patience); errors.Is(err, syscall.ECONNREFUSED) {
						refused++
					} else {
						testbed.Check(t, err)
					}
				}
				return refused
			}
			refused := ask(12) // four turns
			testbed.Eventually(t, "failures are heard of", func() bool { return n.Stats().Flows.Refused == uint64(refused) })
			refused += ask(3)
			testbed.Eventually(t, "it is ejected", func() bool { return n.Balancer.Health().Stats().Active == 1 })
			if refused += ask(100); refused != 5 || n.Stats().Flows.Refused != 5 {
				t.Errorf("%d were refused, want 5; %+v", refused, n.Stats().Flows)
			}
		})
	}
}

// segment is one of TCP without data.
func segment(from, to netip.AddrPort, flags byte, sequence uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint32(b, sequence)
	b = append(b, 0, 0, 0, 0, 5<<4, flags, 255, 255, 0, 0, 0, 0)
	pseudo := append(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), 0, unix.IPPROTO_TCP, 0, byte(len(b)))
	sum := uint32(0)
	for all := append(pseudo, b...); len(all) > 0; all = all[2:] {
		sum += uint32(binary.BigEndian.Uint16(all))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum+sum>>16))
	return b
}

// raw is a socket of a host's for segments.
func (n *node) raw(h *testbed.Host) (raw net.PacketConn) {
	n.T.Helper()
	h.DoT(n.T, func() (err error) { raw, err = net.ListenPacket("ip4:tcp", h.Addr4.String()); return err })
	n.T.Cleanup(func() { _ = raw.Close() })
	return raw
}

// send sends one.
func (n *node) send(raw net.PacketConn, from, to netip.AddrPort, flags byte, sequence uint32) {
	n.T.Helper()
	_, err := raw.WriteTo(segment(from, to, flags, sequence), &net.IPAddr{IP: to.Addr().AsSlice()})
	testbed.Check(n.T, err)
}

// TestClientResets: a client that resets what it has opened, which looks as if the endpoint had refused, has none
// ejected.
func TestClientResets(t *testing.T) {
	t.Parallel()
	n, s, _ := failing(t, false, false, lb.Policies{})
	n.filtered(n.Pods[0], false, "INPUT")
	n.filtered(n.Pods[2], false, "INPUT")
	raw := n.raw(n.Client)
	to := s.Addresses[0].Addr
	const syn, rst = 2, 4
	resets := func(first uint16) {
		for i := range uint16(30) {
			from := netip.AddrPortFrom(n.Client.Addr4, first+i)
			n.send(raw, from, to, syn, 0)
			testbed.Eventually(t, "it has an entry", func() bool {
				_, there, err := n.entries.Find(lb.TCP, from, to)
				testbed.Check(t, err)
				return there
			})
			n.send(raw, from, to, rst, 1)
			testbed.Within(t, 5*time.Second, "it has ended", func() bool { return n.Stats().Flows.Known == 0 })
		}
		if got := n.Balancer.Health().Stats(); got.Active+int64(got.Spared+got.Overflow) > 0 {
			t.Errorf("%+v; %+v", got, n.Stats().Flows)
		}
	}
	resets(20000)
	seem := n.Stats().Flows.Refused // all but those that are looked at before
	if seem < 10 || seem > 30 {
		t.Errorf("%d seem to be refused, want 30", seem)
	}
	testbed.Check(t, n.Node.Sysctl("net.netfilter.nf_conntrack_acct", "1"))
	resets(21000)
	if got := n.Stats().Flows.Refused; got != seem {
		t.Errorf("%d seem to be refused though packets are counted, want %d", got, seem)
	}
}

// TestUnreachable: conntrack does not show ICMP errors; an endpoint that is not reachable has not answered.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	n, s, _ := failing(t, false, true, counting)
	n.Pods[1].Run(t, "iptables-nft", "-I", "INPUT", "-p", "tcp", "-j", "REJECT", "--reject-with", "icmp-host-unreachable")
	for range 3 {
		if _, err := n.dial(&s, testbed.Patience); err != nil && !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("dial: %v", err)
		}
	}
	testbed.Eventually(t, "its failure is seen", func() bool { return n.Stats().Flows.Silent == 1 })
	n.awaits(&s, 1, 0, 1)
}

// TestAttempts: a client whose endpoints are silent gets another one each time, until it has had as many as may be.
func TestAttempts(t *testing.T) {
	t.Parallel()
	n, s, mend := failing(t, false, false, lb.Policies{Scheduler: "lc", OutlierEjection: lb.Off,
		ConnectAttempts: 2})
	mends := []func(){n.filtered(n.Pods[0], false, "INPUT"), mend, n.filtered(n.Pods[2], false, "INPUT")}
	served := make(chan error)
	go func() { _, err := n.dial(&s, testbed.Patience); served <- err }()
	testbed.Eventually(t, "two have failed", func() bool { return n.Stats().Flows.Silent == 2 })
	for _, mend := range mends {
		mend()
	}
	testbed.Check(t, <-served)
	// The client may hear of it before conntrack's event comes.
	testbed.Eventually(t, "it is answered, and in flight", func() bool {
		got := n.inFlight(&s)
		return n.Stats().Flows.Answered == 1 && got[0]+got[1]+got[2] == 1
	})
	view, _ := n.Balancer.Counters().View(s.ID)
	for _, b := range view.Stats.Backends {
		if b.Picks > 1 {
			t.Errorf("%s was chosen %d times", b.Addr, b.Picks)
		}
	}
	if got := n.Stats().Flows; got.Silent != 2 || got.Retried != 1 || got.Answered != 1 {
		t.Errorf("%+v, want 2 silent, 1 retried and 1 answered", got)
	}
}

// TestAloneAndSilent: the only endpoint stays that of a client, and is in flight, for as long as it takes to answer.
func TestAloneAndSilent(t *testing.T) {
	t.Parallel()
	n, s, mend := failing(t, false, false, counting)
	s.Backends = s.Backends[1:2]
	n.Sync(s)
	served := make(chan error)
	go func() { _, err := n.dial(&s, testbed.Patience); served <- err }()
	testbed.Eventually(t, "it has failed", func() bool { return n.Stats().Flows.Silent == 1 })
	n.awaits(&s, 1)
	mend()
	testbed.Check(t, <-served)
	testbed.Eventually(t, "it is answered", func() bool { return n.Stats().Flows.Answered == 1 })
	if got := n.Stats(); got.Chosen != 1 || got.Flows.Retried != 0 {
		t.Errorf("%+v, want one chosen, and answered", got)
	}
}

// TestDroppedHere: what the node's own rules drop is no failure of the endpoint, and not in flight.
func TestDroppedHere(t *testing.T) {
	t.Parallel()
	n, s, mend := failing(t, false, false, counting)
	mend()
	end := n.filtered(n.Node, false, "FORWARD")
	if _, err := n.dial(&s, 1500*time.Millisecond); err == nil {
		t.Fatal("it is not dropped")
	}
	testbed.Eventually(t, "nothing is in flight", func() bool { return n.Stats().Flows.Known == 0 })
	n.awaits(&s, 0, 0, 0)
	if got := n.Stats(); got.Chosen < 2 || got.Flows.Silent != 0 || got.Flows.Refused != 0 {
		t.Errorf("%+v, want two SYNs and no failure", got)
	}
	end()
	n.open(&s, 3)
	n.awaits(&s, 1, 1, 1)
}

// TestUnansweredDatagrams: of a Service that says that datagrams are answered an endpoint that does not is ejected.
func TestUnansweredDatagrams(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Pods: 3})
	n.Balancer.Outlier = lb.DefaultOutlier
	n.Balancer.Outlier.Interval = 0 // one client is believed each time
	s := n.echoing(lb.UDP, false, lb.Policies{UDPResponses: 1})
	silent := lab.At(n.Pods[1].Addr(false), 8081)
	server, err := n.Pods[1].ListenPacket(t.Context(), "udp", silent.String())
	testbed.Check(t, err)
	defer server.Close()
	s.Backends[1].Addr = silent
	n.Sync(s)
	for i := range uint64(15) {
		n.Client.Ask("udp", s.Addresses[0].Addr.String(), 20*time.Millisecond)
		testbed.Eventually(t, "its end is heard of", func() bool { // it may be asked about after that
			n.Node.DoT(t, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
			return n.Stats().Chosen == i+1 && n.Stats().Flows.Known == 0
		})
	}
	testbed.Eventually(t, "it is ejected", func() bool { return n.Balancer.Health().Stats().Active == 1 })
	n.awaits(&s, 0, 0, 0)
}

// TestRestartSCTP: a client that begins its association anew, from the same port, reaches an endpoint of the Service.
func TestRestartSCTP(t *testing.T) {
	t.Parallel()
	newNode(t, testbed.Config{Pods: 2}).RestartSCTP()
}

// TestNextAssociation: an INIT from the port of an association that has ended is asked about.
func TestNextAssociation(t *testing.T) {
	t.Parallel()
	ends := testbed.NewSCTPEnds(t)
	n := newNode(t, testbed.Config{Pods: 1})
	ends.Echo(t, n.Pods[0])
	for _, v6 := range []bool{false, true} {
		s := lab.Simple("sctp"+testbed.Family(v6), testbed.VIP(v6, 1).String(), uint16(ends.EchoPort), lb.SCTP,
			lab.Backend(n.Pods[0], v6, uint16(ends.EchoPort)))
		n.Sync(s)
		for i := range 2 {
			c, err := ends.OpenFrom(n.Client, 3901, s.Addresses[0].Addr)
			testbed.Check(t, err)
			testbed.Check(t, c.Ask(fmt.Sprint("association ", i)))
			n.awaits(&s, 1)
			c.Close()
			n.awaits(&s, 0)
		}
	}
}
