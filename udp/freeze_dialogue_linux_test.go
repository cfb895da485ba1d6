package udp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestForgedAfterHandover: an ICMP error that comes when the backend has answered everything is late or forged, and
// the conversation stays, also where it was taken over from another process.
func TestForgedAfterHandover(t *testing.T) {
	l := newLab(t)
	var b *backend
	var forger net.PacketConn
	l.inPod(func() {
		b = reflecting(t, onPod)
		var err error
		forger, err = net.ListenPacket("ip4:icmp", "10.244.1.10")
		testbed.Check(t, err)
	})
	t.Cleanup(func() { _ = forger.Close() })
	p := startProxy(t, 1, nil, b.addr)
	cl := dial(t, p.addr)
	from := cl.ask("q")
	next, _ := p.moveTo(1)
	next.setBackends(b.addr, naming(t, "other").addr)
	before := refusals(t)
	forged := portUnreachable(netip.MustParseAddrPort(from), b.addr)
	_, err := forger.WriteTo(forged, &net.IPAddr{IP: net.ParseIP("10.244.1.1")})
	testbed.Check(t, err)
	eventually(t, "the error arrives", func() bool { return refusals(t) > before })
	for range 2 {
		next.block()()
	}
	if a := cl.ask("q"); a != from || next.Stats().Refused != 0 {
		t.Errorf("after a hand-over %s answers, and %d refusals count, want %s and none", a, next.Stats().Refused, from)
	}
}

// TestSilenceAfterHandover: a flow whose answer is awaited when it crosses, and does not come, has failed.
func TestSilenceAfterHandover(t *testing.T) {
	silent := listenUDP(t, "127.0.0.1:0").addr
	p := startProxy(t, 1, nil)
	service := func(s *lb.Balancer) {
		table, err := lb.NewTable([]*lb.Service{{ID: lb.ID{Name: "dns", Protocol: lb.UDP},
			Addresses: []lb.Address{{Addr: p.front.Addr}}, Policies: &lb.Policies{UDPResponses: 1},
			Backends: []lb.Backend{{Addr: silent, Ready: true, Serving: true}}}}, lb.Node{})
		testbed.Check(t, err)
		s.Update(table)
	}
	service(p.LB)
	cl := dial(t, p.addr)
	cl.send("q")
	eventually(t, "there is a flow", func() bool { return p.Stats().Active == 1 })
	next, _ := p.moveTo(1)
	eventually(t, "it counts as not answered", func() bool { return next.Stats().NotAnswered == 1 })
}

// TestStoppedProcess: an answer that has come while the process was stopped is read before the flow counts as not
// answered.
func TestStoppedProcess(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, b.addr)
	s := service(1, b.addr)
	s.Policies = &lb.Policies{UDPResponses: 1}
	p.setServices(s)
	c := dial(t, p.addr)
	c.send("q")
	from := b.question(t)
	resume, err := p.Loops.Halt()
	testbed.Check(t, err)
	b.answer(t, "a", from)
	c.send("q")
	time.Sleep(time.Duration(silence) + 100*time.Millisecond) // the process is to stand still for as long
	resume()
	if a := c.receive(); a != "a" {
		t.Errorf("%q answers", a)
	}
	p.block()()
	if n := p.Stats(); n.NotAnswered != 0 || n.Created != 1 {
		t.Errorf("%+v, want no flow that is not answered", n)
	}
}
