package udp

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// patience is how long a test waits for what must happen.
const patience = 10 * time.Second

// proxy is a Server on loops of its own, with one frontend.
type proxy struct {
	*Server
	t     *testing.T
	front lb.Frontend
	addr  netip.AddrPort // where it listens
}

// frontend returns the n-th cluster IP of a family.
func frontend(n int, ipv6 bool) lb.Frontend {
	addr := netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
	if ipv6 {
		addr = netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(n >> 8), 15: byte(n)})
	}
	return lb.Frontend{Protocol: lb.UDP, Addr: netip.AddrPortFrom(addr, 53)}
}

func service(n int, backends ...netip.AddrPort) *lb.Service {
	ipv6 := len(backends) > 0 && backends[0].Addr().Is6()
	s := &lb.Service{
		ID:        lb.ID{Namespace: "default", Name: fmt.Sprint("s", n), Protocol: lb.UDP, IPv6: ipv6},
		Addresses: []lb.Address{{Addr: frontend(n, ipv6).Addr}},
	}
	for _, b := range backends {
		s.Backends = append(s.Backends, lb.Backend{Addr: b, Ready: true, Serving: true})
	}
	return s
}

// newServer returns a Server with loops, closed at the end of the test.
func newServer(t *testing.T, loops int, edit func(*Server)) *Server {
	t.Helper()
	group := newLoops(t, loops)
	s := &Server{Loops: group, LB: new(balancer.Balancer), IdleTimeout: time.Minute}
	if edit != nil {
		edit(s)
	}
	t.Cleanup(func() {
		s.Close()
		if n := s.Stats().Active; n != 0 {
			t.Errorf("%d flows after Close", n)
		}
		for _, service := range s.LB.Counters().All() { // every Choice was done with, once
			if service.InFlight != 0 {
				t.Errorf("%d flows of %s in flight after Close", int64(service.InFlight), service.ID)
			}
		}
		if group == nil {
			return
		}
		if err := group.Close(); err != nil {
			t.Errorf("close loops: %v", err)
		}
	})
	return s
}

// withoutLoops has newServer make Servers that do without event loops.
var withoutLoops bool

// newLoops returns event loops, or nil where there are none or are not to be.
func newLoops(t *testing.T, n int) *eventloop.Group {
	t.Helper()
	if withoutLoops || !hasLoops {
		return nil
	}
	group, err := eventloop.NewGroup(n)
	if err != nil {
		t.Fatal(err)
	}
	return group
}

// startProxy serves one frontend of the first backend's family at a loopback
// address, or at the address at.
func startProxy(t *testing.T, loops int, edit func(*Server), backends ...netip.AddrPort) *proxy {
	t.Helper()
	at := "127.0.0.1:0"
	if len(backends) > 0 && backends[0].Addr().Is6() {
		at = "[::1]:0"
	}
	return startProxyAt(t, loops, edit, at, backends...)
}

func startProxyAt(t *testing.T, loops int, edit func(*Server), at string, backends ...netip.AddrPort) *proxy {
	t.Helper()
	p := &proxy{Server: newServer(t, loops, edit), t: t}
	p.setBackends(backends...)
	addr := netip.MustParseAddrPort(at)
	p.front = frontend(1, addr.Addr().Is6())
	var err error
	if p.addr, err = p.Listen(p.front, addr); err != nil {
		t.Fatal(err)
	}
	return p
}

// setBackends replaces the table, the way the agent does.
func (p *proxy) setBackends(backends ...netip.AddrPort) {
	p.t.Helper()
	p.setServices(service(1, backends...))
}

func (p *proxy) setServices(services ...*lb.Service) {
	p.t.Helper()
	table, err := lb.NewTable(services, lb.Node{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.LB.Update(table)
	p.TableChanged()
}

// second adds a Service at frontend 2, and returns where that listens.
func (p *proxy) second(s *lb.Service) netip.AddrPort {
	p.t.Helper()
	addr, err := p.Listen(frontend(2, false), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.setServices(p.LB.Table().Services()[0], s)
	return addr
}

// eventually polls until ok, since the Server does not report how far it is.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testbed.Within(t, patience, what, ok)
}

// idle waits until no flow is left.
func (p *proxy) idle() {
	p.t.Helper()
	eventually(p.t, "no flow is left", func() bool { return p.Stats().Active == 0 })
}

// backend is a real UDP server.
type backend struct {
	*net.UDPConn
	addr  netip.AddrPort
	asked atomic.Int64
}

// listenUDP opens a socket that is closed at the end of the test.
func listenUDP(t *testing.T, at string) *backend {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadBuffer(4 << 20) // the test is about the Server's losses, not ours
	t.Cleanup(func() { _ = conn.Close() })
	local := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return &backend{UDPConn: conn, addr: netip.AddrPortFrom(local.Addr().Unmap(), local.Port())}
}

// serve answers every question until the socket is closed. An answer of nil is not sent.
func (b *backend) serve(t *testing.T, answer func(question []byte, from netip.AddrPort) []byte) *backend {
	var ended sync.WaitGroup
	ended.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := b.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			b.asked.Add(1)
			if a := answer(buf[:n], from); a != nil {
				_, _ = b.WriteToUDPAddrPort(a, from)
			}
		}
	})
	t.Cleanup(func() {
		_ = b.Close()
		ended.Wait()
	})
	return b
}

// question reads a datagram's sender.
func (b *backend) question(t *testing.T) netip.AddrPort {
	t.Helper()
	_ = b.SetReadDeadline(time.Now().Add(patience))
	_, from, err := b.ReadFromUDPAddrPort(make([]byte, 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	return from
}

func (b *backend) answer(t *testing.T, text string, to netip.AddrPort) {
	t.Helper()
	if _, err := b.WriteToUDPAddrPort([]byte(text), to); err != nil {
		t.Fatal(err)
	}
}

func echo(t *testing.T, at string) *backend {
	t.Helper()
	return listenUDP(t, at).serve(t, func(q []byte, _ netip.AddrPort) []byte { return q })
}

// naming answers with its name.
func naming(t *testing.T, name string) *backend {
	t.Helper()
	return listenUDP(t, "127.0.0.1:0").serve(t, func([]byte, netip.AddrPort) []byte { return []byte(name) })
}

// reflecting answers with the address that the question came from, which distinguishes one
// flow of the Server from another.
func reflecting(t *testing.T, at string) *backend {
	t.Helper()
	return listenUDP(t, at).serve(t, func(_ []byte, from netip.AddrPort) []byte { return []byte(from.String()) })
}

// needsRefusals skips the test under wine, which loses a refusal that arrives before
// a read waits for it: its server asks the socket for its error (sock_poll_event in
// server/sock.c), which cannot be asked again.
func needsRefusals(t *testing.T) {
	t.Helper()
	if wine {
		t.Skip("SKIPPED: wine does not report an earlier refusal to a later read")
	}
}

// client is a socket connected to a Server.
type client struct {
	*net.UDPConn
	t   *testing.T
	buf []byte
}

func dial(t *testing.T, to netip.AddrPort) *client {
	t.Helper()
	return dialFrom(t, nil, to)
}

func dialFrom(t *testing.T, from *net.UDPAddr, to netip.AddrPort) *client {
	t.Helper()
	conn, err := net.DialUDP("udp", from, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadBuffer(4 << 20)
	t.Cleanup(func() { _ = conn.Close() })
	return &client{UDPConn: conn, t: t, buf: make([]byte, 1<<16)}
}

func dialAll(t *testing.T, to netip.AddrPort, n int) (all []*client) {
	t.Helper()
	for range n {
		all = append(all, dial(t, to))
	}
	return all
}

// askAll dials and has each ask once, so that it has a flow.
func askAll(t *testing.T, to netip.AddrPort, n int) []*client {
	t.Helper()
	all := dialAll(t, to, n)
	for _, c := range all {
		c.ask("q")
	}
	return all
}

func (c *client) send(question string) {
	c.t.Helper()
	if _, err := c.Write([]byte(question)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) receive() string {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	n, err := c.Read(c.buf)
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	return string(c.buf[:n])
}

// ask sends once: an answer means that nothing was lost.
func (c *client) ask(question string) string {
	c.t.Helper()
	c.send(question)
	return c.receive()
}

// checkLeaks compares descriptors and goroutines before and after. The test must
// not have started anything of its own that lives on.
func checkLeaks(t *testing.T, run func()) {
	t.Helper()
	descriptors, goroutines := openDescriptors(t), runtime.NumGoroutine()
	run()
	eventually(t, "goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	if n := openDescriptors(t); n != descriptors {
		t.Errorf("%d descriptors are open, %d were before", n, descriptors)
	}
}
