package udp

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// parkAll closes every flow as one that makes room, so that the balancer remembers where its client goes on.
func (p *proxy) parkAll() {
	p.t.Helper()
	for _, sh := range p.shards {
		onLoop(p.t, sh, func() {
			for sh.evict(sh.ages.last, nil, eventloop.Now()) {
			}
		})
	}
}

// A flow that is resumed has its port again though another has it meanwhile, towards a different backend, and neither
// gets an answer of the other. Where the backends are the same it takes another port.
func TestPortsAreShared(t *testing.T) {
	all := seen(t)
	p := startProxy(t, 1, func(s *Server) { s.IdleTimeout = 0 }, all[0])
	second := p.second(service(2, all[1]))
	a, c, b := dial(t, p.addr), dial(t, p.addr), dial(t, second)
	sysctl(t, "net.ipv4.ip_local_port_range", "40000 40000") // the clients have theirs already
	expect := func(who *client, want string) {
		t.Helper()
		if got := who.ask("?"); got != want {
			t.Errorf("a client is answered %q, want %q: by backend and from port", got, want)
		}
	}
	expect(c, "0 40000")
	p.parkAll()
	expect(a, "0 40000")
	p.parkAll()
	expect(b, "1 40000")
	for range 5 {
		expect(a, "0 40000")
		expect(b, "1 40000")
	}
	if s := p.Stats(); s.Active != 2 || s.Resumed != 1 || s.PortsLost != 0 {
		t.Errorf("stats = %+v, want two flows of one port", s)
	}
	sysctl(t, "net.ipv4.ip_local_port_range", "40000 40001")
	expect(c, "0 40001")
	for range 5 {
		expect(a, "0 40000")
		expect(b, "1 40000")
		expect(c, "0 40001")
	}
	if s := p.Stats(); s.Active != 3 || s.PortsLost != 1 {
		t.Errorf("stats = %+v, want three flows, one of which has lost its port", s)
	}
	p.idleEntries(3)
}

// idleEntries wants so many places of ports to be taken, and none once the flows are closed.
func (p *proxy) idleEntries(want int) {
	p.t.Helper()
	for _, want := range []int{want, 0} {
		taken, ports := 0, p.shards[0].ports
		for i := range ports.entries {
			for j := range ports.entries[i] {
				for e := ports.entries[i][j].Load(); e != 0; e >>= 32 {
					taken += min(1, int(e&lowPlace))
				}
			}
		}
		if taken != want {
			p.t.Errorf("%d places are taken, want %d", taken, want)
		}
		p.parkAll()
	}
}

// A flow that shares its port and is refused does not go on from there to the backend of the other: it is closed, and
// the client's next question goes there from elsewhere.
func TestSharedPortIsRefused(t *testing.T) {
	needsRefusals(t)
	refusing, other := listenUDP(t, "127.0.0.1:0"), seen(t)[0]
	p := startProxy(t, 1, func(s *Server) { s.IdleTimeout = 0 }, refusing.addr)
	second := p.second(service(2, other))
	a, b := dial(t, p.addr), dial(t, second)
	sysctl(t, "net.ipv4.ip_local_port_range", "40000 40000")
	a.send("?")
	refusing.answer(t, "first", refusing.question(t))
	if got := a.receive(); got != "first" {
		t.Fatalf("the client is answered %q", got)
	}
	p.parkAll()
	if got := b.ask("?"); got != "0 40000" {
		t.Fatalf("the other client is answered %q", got)
	}
	p.setServices(service(1, refusing.addr, other), service(2, other))
	a.send("?")
	from := refusing.question(t)
	if from.Port() != 40000 {
		t.Fatalf("the flow goes on from %s", from)
	}
	_ = refusing.Close()
	sysctl(t, "net.ipv4.ip_local_port_range", "40000 40001")
	a.send("!") // is refused
	eventually(t, "the flow is closed", func() bool { return p.Stats().Refused == 1 && p.Stats().Active <= 1 })
	if got := a.ask("?"); got != "0 40001" {
		t.Errorf("the client is answered %q, want from the other port", got)
	}
	if got := b.ask("?"); got != "0 40000" {
		t.Errorf("the other client is answered %q", got)
	}
}

// A port has two places, of different backends; the second is for those only who know of the first.
func TestPorts(t *testing.T) {
	p := newPorts()
	backend := func(n int) netip.AddrPort { return netip.MustParseAddrPort(fmt.Sprint("10.0.0.", n, ":53")) }
	take := func(want bool, n int, beside bool) portPlace {
		t.Helper()
		place, ok := p.take(0, 7, backend(n), beside)
		if ok != want {
			t.Errorf("a place for backend %d, beside another: %t; taken: %t", n, beside, ok)
		}
		return place
	}
	take(false, 1, true)
	one := take(true, 1, false)
	take(false, 1, true)
	take(false, 1, false)
	two := take(true, 2, true)
	take(false, 3, true)
	one.free()
	one.free() // twice is fine
	take(false, 2, true)
	three := take(true, 3, true)
	two.free()
	three.free()
	if e := p.entries[0][7].Load(); e != 0 {
		t.Errorf("the entry is %x after all are free", e)
	}
	take(false, 1, true)
	if _, ok := p.take(0, 7, netip.MustParseAddrPort("[fd00::1]:53"), false); !ok {
		t.Error("the families have ports of their own")
	}
}
