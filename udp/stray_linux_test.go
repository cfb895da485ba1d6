package udp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb/balancer"
)

// newest returns the descriptor of the flow that was made last, and which socket that is, and has all flows rest for
// long enough to give their places.
func (p *proxy) newest() (fd int, socket string) {
	p.t.Helper()
	onLoop(p.t, p.shards[0], func() {
		fd = p.shards[0].ages.first.fd
		for f := p.shards[0].ages.first; f != nil; f = f.links[byAge].next {
			f.active -= brief
		}
	})
	socket, err := os.Readlink(fmt.Sprint("/proc/self/fd/", fd))
	if err != nil {
		p.t.Fatal(err)
	}
	return fd, socket
}

// wants fails if a client has got what is not for it.
func (c *client) wants(name string) {
	c.t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		for {
			n, _, err := unix.Recvfrom(int(fd), c.buf, unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			if got := string(c.buf[:n]); !strings.HasSuffix(got, " "+name) {
				c.t.Errorf("client %s has got %q", name, got)
			}
		}
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// TestStrayAnswers: no client gets what it has not asked for, though its flow has the socket of another client's:
// answers that are late or come twice, are forged or arrive in another order.
func TestStrayAnswers(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	forgers := []*backend{listenUDP(t, "127.0.0.1:0"), listenUDP(t, fmt.Sprint("127.0.0.2:", b.addr.Port()))}
	p := startProxy(t, 1, func(s *Server) { s.MaxFlows, s.IdleTimeout = 4, 0 }, b.addr)
	owners := map[netip.AddrPort]string{} // of ports
	var last netip.AddrPort
	var before string
	var all []*client
	const rounds = 20
	for i := range rounds {
		name, c := fmt.Sprint(i), dial(t, p.addr)
		all = append(all, c)
		release := p.block()
		c.send("?") // is read before what comes next
		waits := i%2 == 1
		if waits {
			b.answer(t, "late "+owners[last], last)
		}
		release()
		last = b.question(t)
		owners[last] = name
		for at, owner := range owners {
			if at != last {
				b.answer(t, "twice "+owner, at)
			}
			for _, f := range forgers {
				f.answer(t, "forged", at)
			}
		}
		b.answer(t, "answer "+name, last)
		if got := c.receive(); got != "answer "+name {
			t.Errorf("client %s is answered %q", name, got)
		}
		_, socket := p.newest()
		if i > 0 && (socket == before) == waits {
			t.Errorf("client %s: its flow has the socket of the one before: %t; an answer to that waits: %t", name,
				socket == before, waits)
		}
		before = socket
	}
	one, two := dial(t, p.addr), dial(t, p.addr)
	one.send("?")
	first := b.question(t)
	two.send("?")
	b.answer(t, "answer two", b.question(t))
	b.answer(t, "answer one", first)
	if a, b := one.receive(), two.receive(); a != "answer one" || b != "answer two" {
		t.Errorf("the clients are answered %q and %q", a, b)
	}
	for range 2 { // what has come before is passed on by then
		p.block()()
	}
	for i, c := range all {
		c.wants(fmt.Sprint(i))
	}
	one.wants("one")
	two.wants("two")
	if s := p.Stats(); s.Parked < rounds || s.Created != rounds+2 {
		t.Errorf("stats = %+v, want %d flows, of which all but the last ones are parked", s, rounds+2)
	}
}

// TestInheritedWhileExpiring: a flow whose time is over is taken over by a client whose question has waited meanwhile.
func TestInheritedWhileExpiring(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, func(s *Server) { s.MaxFlows, s.IdleTimeout = 4, 0 }, b.addr)
	first, second := dial(t, p.addr), dial(t, p.addr)
	first.send("?")
	b.answer(t, "first", b.question(t))
	first.receive()
	sh := p.shards[0]
	onLoop(t, sh, func() {
		f := sh.ages.first
		f.active -= balancer.UDPTimeout
		f.ln.emptied = 0
		sh.loop.StopTimer(&f.timer)
		second.send("?")
		f.Expire(&f.timer)
		if sh.ages.first != f || f.key.client.Port() != second.LocalAddr().(*net.UDPAddr).AddrPort().Port() {
			t.Error("the second client has not taken over: the test tests nothing")
		}
		if in := f.looks - f.born; in > counting {
			t.Errorf("the new flow is looked at after %d ns, as the one before it would be", in)
		}
	})
	b.answer(t, "second", b.question(t))
	if got := second.receive(); got != "second" {
		t.Errorf("the second client is answered %q", got)
	}
}

// TestStrayRefusal: an endpoint's refusal that waits in the socket of a flow is not for the one that takes its place.
func TestStrayRefusal(t *testing.T) {
	needsRefusals(t)
	gone, other := listenUDP(t, "127.0.0.1:0"), naming(t, "other")
	p := startProxy(t, 1, func(s *Server) { s.MaxFlows, s.IdleTimeout = 4, 0 }, gone.addr)
	a, b := dial(t, p.addr), dial(t, p.second(service(2, other.addr)))
	a.send("?")
	gone.answer(t, "gone", gone.question(t))
	a.receive()
	fd, before := p.newest()
	_ = gone.Close()
	release := p.block()
	b.send("?")
	if _, err := unix.Write(fd, []byte("!")); err != nil { // is refused
		t.Fatal(err)
	}
	release()
	if got := b.receive(); got != "other" {
		t.Errorf("the client is answered %q", got)
	}
	if _, socket := p.newest(); socket == before {
		t.Error("a socket with an error is used again")
	}
	if s := p.Stats(); s.Refused != 0 || s.Parked != 1 {
		t.Errorf("stats = %+v, want one flow parked and none refused", s)
	}
}
