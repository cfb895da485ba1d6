package queue

import (
	"errors"
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

// TestRetryRefused: where a Service requests it a client that an endpoint refuses does not hear that, and gets another
// one; it is refused where all do. Others hear it, and so do all of what resets a connection that was open.
func TestRetryRefused(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(lab.Family(v6), func(t *testing.T) {
			t.Parallel()
			n, s, _ := failing(t, v6, true, lb.Policies{RetryRefused: lb.On, OutlierEjection: lb.Off,
				MaxConnections: counting.MaxConnections})
			plain := s
			plain.Name, plain.Policies = "plain", &counting
			plain.Addresses = []lb.Address{{Addr: lab.At(lab.VIP(v6, 2), 80), Kind: lb.ClusterIP}}
			alone := s
			alone.Name, alone.Backends = "alone", s.Backends[1:2]
			alone.Addresses = []lb.Address{{Addr: lab.At(lab.VIP(v6, 3), 80), Kind: lb.ClusterIP}}
			n.Sync(s, plain, alone)
			if !n.Verify() {
				t.Error("Verify finds something out of place")
			}
			n.open(&s, 9)
			if got := n.Stats().Flows; got.Refused != 3 || got.Retried != 3 || repeated(t, n.Client) != 3 {
				t.Errorf("%+v, and %d SYNs were sent again; want three of nine refused, and retried", got, repeated(t, n.Client))
			}
			if got := n.inFlight(&s); got[0]+got[2] != 9 || got[1] != 0 {
				t.Errorf("in flight %d, want none at the second", got)
			}
			refused := 0
			for range 3 {
				if _, err := n.dial(&plain, testbed.Patience); errors.Is(err, syscall.ECONNREFUSED) {
					refused++
				} else {
					testbed.Check(t, err)
				}
			}
			if refused != 1 {
				t.Errorf("%d of three clients of a Service that does not request it are refused, want 1", refused)
			}
			if _, err := n.dial(&alone, testbed.Patience); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("where the only endpoint refuses: %v, want refused", err)
			}
			testbed.Eventually(t, "nothing is left of it", func() bool { return n.Stats().Flows.Known == 9+2 })
			n.resets(&s)
			n.Sync(plain)
			if rules := n.Node.Run(t, "nft", "list", "ruleset"); strings.Contains(rules, "refused-") {
				t.Error("rules for what nothing requests are left")
			}
		})
	}
}

// TestRetryRefusedAtNodePorts: so it is for clients from elsewhere and on the node itself that ask at a node port of any
// address. What refuses at the node itself, on the same port, is heard.
func TestRetryRefusedAtNodePorts(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(lab.Family(v6), func(t *testing.T) {
			t.Parallel()
			n, s, _ := failing(t, v6, true, lb.Policies{RetryRefused: lb.On, OutlierEjection: lb.Off})
			s.Addresses = append(s.Addresses, lb.Address{Addr: lab.Anywhere(v6, 30080), Kind: lb.NodePort})
			n.Sync(s)
			ask := func(from *testbed.Host, to netip.Addr) error {
				c, err := from.Dial(t.Context(), "tcp", lab.At(to, 30080).String())
				if err == nil {
					(&testbed.Talker{T: t, Conn: c}).Echoes()
					testbed.Check(t, c.Close())
				}
				return err
			}
			node := lab.Address(n.Node, v6)
			for i, from := range []*testbed.Host{n.Client, n.Node} {
				for range 3 {
					if err := ask(from, node); err != nil {
						t.Errorf("client %d: %v", i, err)
					}
				}
			}
			if got := n.Stats().Flows; got.Refused != 2 || got.Retried != 2 {
				t.Errorf("%+v, want two of six refused, and retried", got)
			}
			loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
			if v6 {
				loopback = netip.IPv6Loopback()
			}
			if err := ask(n.Node, loopback); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("at a loopback address: %v, want refused", err)
			}
			s.Addresses = s.Addresses[:1]
			n.Sync(s)
			if err := ask(n.Client, node); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("without the node port: %v, want refused", err)
			}
		})
	}
}

// resets has the endpoints of a Service reset what they have accepted.
func (n *node) resets(s *lb.Service) {
	n.T.Helper()
	b := lab.Backend(n.Pods[0], s.IPv6, 8090)
	ln, err := n.Pods[0].Listen(n.T.Context(), "tcp", b.Addr.String())
	testbed.Check(n.T, err)
	defer ln.Close()
	s.Backends = []lb.Backend{b}
	n.Sync(*s)
	c, err := n.Client.Dial(n.T.Context(), "tcp", s.Addresses[0].Addr.String())
	testbed.Check(n.T, err)
	defer c.Close()
	at, err := ln.Accept()
	testbed.Check(n.T, err)
	testbed.Check(n.T, at.(*net.TCPConn).SetLinger(0))
	testbed.Check(n.T, at.Close())
	testbed.Check(n.T, c.SetDeadline(time.Now().Add(testbed.Patience)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		n.T.Errorf("after a reset: %v", err)
	}
}
