package udp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/mmsg"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// familyOption sets an option of a socket's family.
func familyOption(t *testing.T, conn *net.UDPConn, v4, v6, value int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	testbed.Check(t, err)
	level, name := unix.IPPROTO_IP, v4
	if conn.LocalAddr().(*net.UDPAddr).IP.To4() == nil {
		level, name = unix.IPPROTO_IPV6, v6
	}
	err2 := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, name, value) })
	testbed.Check(t, err)
	testbed.Check(t, err2)
}

func (c *client) hops(n int) {
	c.t.Helper()
	familyOption(c.t, c.UDPConn, unix.IP_TTL, unix.IPV6_UNICAST_HOPS, n)
}

// arrival returns the hops that the next datagram has left, and its sender.
func arrival(t *testing.T, conn *net.UDPConn) (int, netip.AddrPort) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	control := make([]byte, mmsg.ControlSize)
	_, n, _, from, err := conn.ReadMsgUDPAddrPort(make([]byte, 100), control)
	testbed.Check(t, err)
	hops, ok := mmsg.Control(control[:n]).Hops()
	if !ok {
		t.Fatal("the kernel does not report the hops")
	}
	return hops, unmap(from)
}

func reportsHops(t *testing.T, b *backend) *backend {
	t.Helper()
	familyOption(t, b.UDPConn, unix.IP_RECVTTL, unix.IPV6_RECVHOPLIMIT, 1)
	return b
}

// A datagram has a hop less behind the Server than before it; the flow never allows more than the least so far, and
// says so after a move. Answers have as many as any packet of this host.
func TestHops(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		b := reportsHops(t, listenUDP(t, at))
		p := startProxy(t, 1, nil, b.addr)
		c := dial(t, p.addr)
		familyOption(t, c.UDPConn, unix.IP_RECVTTL, unix.IPV6_RECVHOPLIMIT, 1)
		for i, step := range []struct{ sent, want int }{{64, 63}, {20, 19}, {200, 19}, {2, 1}} {
			c.hops(step.sent)
			c.send("q")
			got, from := arrival(t, b.UDPConn)
			if got != step.want {
				t.Errorf("%s: datagram %d was sent with %d hops and came with %d, want %d", at, i, step.sent, got, step.want)
			}
			b.answer(t, "a", from)
			if got, _ := arrival(t, c.UDPConn); got != 64 {
				t.Errorf("%s: an answer has %d hops, want 64", at, got)
			}
		}
		c.hops(1)
		c.send("q")
		eventually(t, "a datagram without hops is dropped", func() bool { return p.Stats().HopsExceeded == 1 })
		for _, ln := range p.listeners[p.front] { // a Server of an earlier version did not ask for the hops
			level, name := unix.IPPROTO_IP, unix.IP_RECVTTL
			if b.addr.Addr().Is6() {
				level, name = unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT
			}
			testbed.Check(t, unix.SetsockoptInt(ln.fd, level, name, 0))
		}
		next, _ := p.moveTo(1)
		c.hops(30)
		c.send("q")
		if got, _ := arrival(t, b.UDPConn); got != 29 {
			t.Errorf("%s: after a move a datagram of 30 hops came with %d", at, got)
		}
		eventually(t, "5 datagrams are counted", func() bool { return next.Stats().DatagramsIn == 5 })
	}
}

// Two Servers that have each other as backend: a datagram goes round until its hops are used up, and no flow stays.
func TestLoopEnds(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		short := func(s *Server) { s.IdleTimeout = 200 * time.Millisecond }
		one := startProxyAt(t, 2, short, at)
		two := startProxyAt(t, 2, short, at, one.addr)
		one.setBackends(two.addr)
		c := dial(t, one.addr)
		c.hops(64)
		c.send("q")
		eventually(t, "the loop ends", func() bool { return one.Stats().HopsExceeded+two.Stats().HopsExceeded == 1 })
		one.idle()
		two.idle()
		if n := one.Stats().DatagramsIn + two.Stats().DatagramsIn; n != 63 {
			t.Errorf("%s: %d datagrams, want 63", at, n)
		}
	}
}

// A router drops what has no hops left, and says so: that is up to the client, not to the backend.
func TestHopsExceededOnTheWay(t *testing.T) {
	l := newLab(t)
	far, pod := netip.MustParseAddr("10.9.0.1"), l.Pods[0] // which sends it back to the node
	testbed.Check(t, l.Node.Route("cni0", testbed.Alone(far), pod.Addr4))
	testbed.Check(t, pod.Sysctl("net.ipv4.ip_forward", "1"))
	p := startProxy(t, 1, nil, netip.AddrPortFrom(far, 53), naming(t, "here").addr)
	for range 2 { // one of the two goes there
		cl := dial(t, p.addr)
		cl.hops(2)
		cl.send("q")
	}
	eventually(t, "the router has answered, and both clients have a flow", func() bool {
		s := p.Stats()
		return s.HopsExceeded == 1 && s.Created == 2
	})
	if s := p.Stats(); s.Refused != 0 || p.LB.Counters().All()[0].Failures != 0 || s.Active != 2 {
		t.Errorf("stats = %+v with %d failures, want none", s, p.LB.Counters().All()[0].Failures)
	}
}

// A flow that has the socket of another allows as many hops as its own client does.
func TestInheritedHops(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		b := reportsHops(t, listenUDP(t, at))
		p := startProxy(t, 1, func(s *Server) { s.MaxFlows, s.IdleTimeout = 4, 0 }, b.addr)
		for _, hops := range []int{20, 64, 64, 30} {
			c := dial(t, p.addr)
			c.hops(hops)
			c.send("q")
			got, from := arrival(t, b.UDPConn)
			if got != hops-1 {
				t.Errorf("%s: a datagram was sent with %d hops and came with %d", at, hops, got)
			}
			b.answer(t, "a", from)
			c.receive()
			p.newest()
		}
		if s := p.Stats(); s.Parked != 3 {
			t.Errorf("stats = %+v, want three flows parked", s)
		}
	}
}
