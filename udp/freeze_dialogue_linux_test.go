package udp

import (
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// TestSilenceAfterHandover: a flow whose answer is awaited when it crosses, and does not come, has failed.
func TestSilenceAfterHandover(t *testing.T) {
	silent := listenUDP(t, "127.0.0.1:0").addr
	p := startProxy(t, 1, nil)
	service := func(s *balancer.Balancer) {
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
