package tcp

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
)

// withPorts runs the test in a network of its own, with these local ports. False: this is the parent.
func withPorts(t *testing.T, first, last int) bool {
	t.Helper()
	if !inOwnProcess(t, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
	}) {
		return false
	}
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	check(t, netlink.LinkSetUp(lo))
	check(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte(fmt.Sprint(first, " ", last)), 0))
	return true
}

const fewPorts = 8

// fixed makes listeners and clients use ports outside of the range.
type fixed struct{ next uint16 }

func (f *fixed) port() uint16 { f.next++; return f.next }

// client connects to the proxy.
func (f *fixed) client(p *proxy) *net.TCPConn {
	p.t.Helper()
	return knock(p, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(f.port())})
}

// knock connects to the proxy, which may reset the client as soon as that has happened: then there is no connection.
func knock(p *proxy, from net.Addr) *net.TCPConn {
	p.t.Helper()
	d := net.Dialer{Timeout: patience, LocalAddr: from}
	c, err := d.Dial("tcp", p.addr.String())
	if isReset(err) {
		return nil
	}
	check(p.t, err)
	p.t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// onePortLoop is a proxy with one loop, since each loop asks for ports on its own.
func onePortLoop(t *testing.T, backends ...netip.AddrPort) *proxy {
	t.Helper()
	p := newProxy(t, 1)
	p.serve(backends...)
	var err error
	p.addr, err = p.ListenSteered(netip.MustParseAddrPort("127.0.0.1:30000"))
	check(t, err)
	return p
}

// TestNoLocalPorts: while no port is free towards a backend one connect(2) asks for all, the clients wait in a bounded
// queue, and one of them has the port that becomes free. The backend is not to blame.
func TestNoLocalPorts(t *testing.T) {
	if !withPorts(t, 40000, 40000+fewPorts-1) {
		return
	}
	backend, err := net.Listen("tcp", "127.0.0.1:20000") // the kernel completes connections, no process accepts them
	check(t, err)
	defer backend.Close()
	p, f := onePortLoop(t, netip.MustParseAddrPort("127.0.0.1:20000")), &fixed{next: 1024}
	holders := make([]*net.TCPConn, fewPorts)
	for i := range holders {
		holders[i] = f.client(p)
	}
	p.eventually("every port is in use", func(s Stats) bool { return s.Established == fewPorts })

	const clients = 300
	for range clients {
		f.client(p)
	}
	p.eventually("the queue is full", func(s Stats) bool { return s.NoPorts >= clients-256 })
	check(t, holders[0].SetLinger(0)) // the port is free at once
	check(t, holders[0].Close())
	p.eventually("a client has got the port", func(s Stats) bool { return s.Established == fewPorts+1 })
	p.eventually("the others have waited for long", func(s Stats) bool { return s.NoPorts == clients-1 })
	s := p.Stats()
	// 2 s of waiting are 20 connects, and the clients of the queue have waited one after the other.
	if failed := s.Dials - s.Established; failed > 60 || s.DialRefused != 0 || p.LB.Counters().All()[0].Failures != 0 {
		t.Errorf("%d connects for %d clients found no port; stats %+v", failed, clients, s)
	}
}

// TestNoLocalPortsButOther: the other backend of the Service is tried at once.
func TestNoLocalPortsButOther(t *testing.T) {
	if !withPorts(t, 40000, 40000+fewPorts-1) {
		return
	}
	full, err := net.Listen("tcp", "127.0.0.1:20000")
	check(t, err)
	defer full.Close()
	other, err := net.Listen("tcp", "127.0.0.2:20000")
	check(t, err)
	defer other.Close()
	p, f := onePortLoop(t, netip.MustParseAddrPort("127.0.0.1:20000")), &fixed{next: 1024}
	for range fewPorts {
		f.client(p)
	}
	p.eventually("every port is in use", func(s Stats) bool { return s.Established == fewPorts })
	p.serve(netip.MustParseAddrPort("127.0.0.1:20000"), netip.MustParseAddrPort("127.0.0.2:20000"))
	for range fewPorts {
		f.client(p)
	}
	p.eventually("all clients have a backend", func(s Stats) bool { return s.Established == 2*fewPorts })
	if s := p.Stats(); s.Shortages != 0 {
		t.Errorf("%d waits for a port although another backend has some", s.Shortages)
	}
}

// TestOldDialsMakeRoom: dials of silent backends that take all places, without a share that bites, make room for new
// ones, the oldest first.
func TestOldDialsMakeRoom(t *testing.T) {
	second := netip.MustParseAddrPort("10.96.0.2:80")
	hole, good := silent(t), naming(t, "a")
	p := newProxy(t, 1)
	p.MaxDials = 4
	p.DialTimeouts = []time.Duration{50 * time.Millisecond, 50 * time.Millisecond, time.Minute}
	p.twoServices(t, hole, second, good)
	asked := frontend
	p.OriginalDst = func(int) (netip.AddrPort, error) { return asked, nil }
	var err error
	p.addr, err = p.ListenSteered(netip.MustParseAddrPort("127.0.0.1:0"))
	check(t, err)
	oldest := p.dial()
	p.eventually("the oldest dials", func(s Stats) bool { return s.Dialling == 1 })
	for range p.MaxDials - 1 {
		knock(p, nil)
	}
	p.eventually("all wait for a third attempt", func(s Stats) bool { return s.DialTimedOut == 8 && s.Dialling == 4 })
	check(t, p.Loops.Loops()[0].Do(func() { asked = second }))
	if name, err := io.ReadAll(p.dial()); err != nil || string(name) != "a" {
		t.Errorf("the other Service answers %q, %v", name, err)
	}
	if _, err := oldest.Read(make([]byte, 1)); !isReset(err) {
		t.Errorf("the oldest client saw %v, want a reset", err)
	}
	if s := p.Stats(); s.DialEvicted != 1 || s.Dialling != 3 {
		t.Errorf("stats %+v, want one dial evicted and three left", s)
	}
}

// twoServices has the proxy serve a Service at frontend, and another one at second.
func (p *proxy) twoServices(t *testing.T, backend, second, other netip.AddrPort) {
	t.Helper()
	table, err := lb.NewTable([]*lb.Service{
		{ID: lb.ID{Name: "hole", Protocol: lb.TCP}, Addresses: []lb.Address{{Addr: frontend}},
			Backends: []lb.Backend{{Addr: backend, Ready: true, Serving: true}}},
		{ID: lb.ID{Name: "good", Protocol: lb.TCP}, Addresses: []lb.Address{{Addr: second}},
			Backends: []lb.Backend{{Addr: other, Ready: true, Serving: true}}},
	}, lb.Node{})
	check(t, err)
	p.LB.Update(table)
}

// TestSharesOfDials: the clients of a Service whose backends are silent leave dials for another's.
func TestSharesOfDials(t *testing.T) {
	second := netip.MustParseAddrPort("10.96.0.2:80")
	hole, good := silent(t), naming(t, "a")
	p := newProxy(t, 1)
	p.MaxDials, p.Shares = 20, shares.Shares{Service: 50, Client: 100}
	p.twoServices(t, hole, second, good)
	asked := frontend
	p.OriginalDst = func(int) (netip.AddrPort, error) { return asked, nil }
	var err error
	p.addr, err = p.ListenSteered(netip.MustParseAddrPort("127.0.0.1:0"))
	check(t, err)
	for range 30 {
		knock(p, nil)
	}
	p.eventually("the Service has its share of dials", func(s Stats) bool {
		return s.ServiceDials == 20 && s.Dialling == 10
	})
	check(t, p.Loops.Loops()[0].Do(func() { asked = second }))
	if name, err := io.ReadAll(p.dial()); err != nil || string(name) != "a" {
		t.Errorf("the other Service answers %q, %v", name, err)
	}
	if s := p.Stats(); s.PausedDials != 0 {
		t.Errorf("accepting paused %d times", s.PausedDials)
	}
}
