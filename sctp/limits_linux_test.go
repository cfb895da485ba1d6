package sctp

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

// The backend is asked for as many streams as the client has.
func TestStreams(t *testing.T) {
	l := only(t, Socket, testbed.Config{Pods: 1}, settings{})
	client, server := l.associate()
	ask(t, client, server, message{stream: bulkStreams - 1, data: []byte("x")})
	for _, p := range []peer{client, server} {
		var s kernel.Status
		var err error
		if e := p.(*kernelPeer).rc.Control(func(fd uintptr) { s, err = kernel.GetStatus(int(fd)) }); e != nil || err != nil {
			t.Fatal(e, err)
		}
		if s.In != bulkStreams || s.Out != bulkStreams {
			t.Errorf("%d streams in, %d out, want %d", s.In, s.Out, bulkStreams)
		}
	}
}

// A message that is too long to be put together ends its association, and nothing
// else.
func TestTooLong(t *testing.T) {
	l := only(t, Socket, testbed.Config{Pods: 1}, settings{})
	accepted := l.serve(l.Pods...)
	client, other := l.dial(l.Client), l.dial(l.Client)
	server, otherServer := l.accept(accepted[0]), l.accept(accepted[0])
	ask(t, client, server, message{data: bytes.Repeat([]byte{1}, 1<<20)})
	check(t, client.send(message{data: bytes.Repeat([]byte{2}, 3<<19)}))
	expectEnd(t, client, "the client that sent it")
	expectEnd(t, server, "its backend")
	l.eventually("one is over", func(s Stats) bool { return s.TooLong == 1 && s.Active == 1 })
	ask(t, other, otherServer, message{data: []byte("undisturbed")})
}

// TestDrainOfAssociations: one whose endpoint has left ends when the drain of its Service is over, and no other.
func TestDrainOfAssociations(t *testing.T) {
	l := only(t, Socket, testbed.Config{Pods: 2}, settings{})
	accepted := l.serve(l.Pods...)
	drain := func(pods ...*testbed.Host) {
		o := order{Do: "table", Drain: int64(time.Second)}
		for _, pod := range pods {
			o.Backends = append(o.Backends, pod.At(l.ipv6, port))
		}
		l.order(o)
	}
	drain(l.Pods...)
	var clients, servers [2]peer // by endpoint
	for range 2 {
		client := l.dial(l.Client)
		select {
		case servers[0] = <-accepted[0]:
			clients[0] = client
		case servers[1] = <-accepted[1]:
			clients[1] = client
		case <-time.After(testbed.Patience):
			t.Fatal("no endpoint has accepted")
		}
	}
	began := time.Now()
	drain(l.Pods[1])
	expectEnd(t, clients[0], "the client whose endpoint has left")
	expectEnd(t, servers[0], "the endpoint that has left")
	if took := time.Since(began); took < time.Second {
		t.Errorf("it has drained for %v", took)
	}
	ask(t, clients[1], servers[1], message{data: []byte("undisturbed")})
	if s := l.stats(); s.DrainReset != 1 || s.Active != 1 {
		t.Errorf("%+v", s)
	}
}

// TestMaxConnections: a client beyond the limit is reset immediately, and an association that has ended counts no more,
// after a hand-over either.
func TestMaxConnections(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 1}, false, settings{})
		accepted := l.serve(l.Pods...)
		l.order(order{Do: "table", Most: 1, Backends: []netip.AddrPort{l.Pods[0].At(l.ipv6, port)}})
		for i, upgrade := range []bool{false, true} {
			client := l.dial(l.Client)
			server := l.accept(accepted[0])
			ask(t, client, server, message{data: []byte("x")})
			began := time.Now()
			if p, err := l.tryDial(l.Client, 0, patience); err == nil {
				expectEnd(t, p, "the kernel has taken a client beyond the limit, which")
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("a client beyond the limit hears of it after %v", took)
			}
			check(t, client.shutdown())
			l.eventually("it has ended", func(s Stats) bool { return s.Active == 0 && s.Completed == uint64(i+1) })
			if upgrade {
				l.order(order{Do: "upgrade", Loops: 2})
			}
		}
		refused := l.stats().OverConnections
		ask(t, l.dial(l.Client), l.accept(accepted[0]), message{data: []byte("x")})
		if s := l.stats(); s.OverConnections != refused {
			t.Errorf("after all have ended %d are refused", s.OverConnections-refused)
		}
	})
}

// Heartbeats go to the address that a client came from, so that one that vanishes
// is noticed.
func TestHeartbeats(t *testing.T) {
	l := only(t, Socket, testbed.Config{Pods: 1}, settings{})
	client, server := l.associate()
	ask(t, client, server, message{data: []byte("x")})
	out, err := l.Node.Command(t.Context(), "cat", "/proc/self/net/sctp/remaddr").Output()
	check(t, err)
	active := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 {
			active[f[0]] = f[2] // ADDR ASSOC_ID HB_ACT
		}
	}
	if active[l.Client.Addr4.String()] != "1" || active[l.Pods[0].Addr4.String()] != "1" {
		t.Errorf("heartbeats:\n%s", out)
	}
}

// An ABORT reaches the backend also while the client is not read, since the backend takes nothing.
func TestAbortBehindStalledReader(t *testing.T) {
	l := only(t, Socket, testbed.Config{Pods: 1}, settings{})
	client, server := l.associate()
	go func() {
		for client.send(message{data: make([]byte, 10000)}) == nil {
		}
	}()
	for last := uint64(0); ; {
		// Nothing reports that no more is taken.
		time.Sleep(moment())
		n := l.stats().MessagesIn
		if n == last && n > 0 {
			break
		}
		last = n
	}
	client.abort()
	l.eventually("it is passed on", func(s Stats) bool { return s.Active == 0 && s.ClientAborts == 1 })
	for {
		if _, err := server.receive(); err != nil {
			if errors.Is(err, errPatience) {
				t.Error("the backend does not notice the end")
			}
			return
		}
	}
}
