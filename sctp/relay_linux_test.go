package sctp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// ask sends a message and expects the other end to get it whole.
func ask(t *testing.T, from, to peer, m message) {
	t.Helper()
	if err := from.send(m); err != nil {
		t.Fatalf("send: %v", err)
	}
	got, err := to.receive()
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	if got.stream != m.stream || got.ppid != m.ppid || !bytes.Equal(got.data, m.data) {
		t.Fatalf("got stream %d, PPID %d, %d bytes; want %d, %d, %d", got.stream, got.ppid, len(got.data), m.stream, m.ppid, len(m.data))
	}
}

// expectEnd expects that an end learns of the end of its association.
func expectEnd(t *testing.T, p peer, what string) {
	t.Helper()
	if m, err := p.receive(); err == nil || errors.Is(err, errPatience) {
		t.Errorf("%s: got %d bytes, %v; want the end", what, len(m.data), err)
	}
}

func TestRelay(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		for _, ipv6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("ipv6=%v", ipv6), func(t *testing.T) {
				l := newLab(t, with, testbed.Config{Pods: 1}, ipv6, settings{})
				client, server := l.associate()
				if got := server.from().Addr(); got != l.Node.Addr(l.ipv6) && got != testbed.Gateway(l.ipv6) {
					t.Errorf("the backend sees %v", got)
				}
				for i, size := range []int{1, 100, 1400, 5000, 70000, 200000} {
					m := message{stream: uint16(i), ppid: uint32(i) << 20, unordered: i%2 == 1, data: bytes.Repeat([]byte{byte(i)}, size)}
					ask(t, client, server, m)
					ask(t, server, client, m)
				}
				if err := client.shutdown(); err != nil {
					t.Errorf("shutdown: %v", err)
				}
				if _, err := server.receive(); !errors.Is(err, io.EOF) {
					t.Errorf("the backend reads %v, want the end", err)
				}
				l.eventually("the association is over", func(s Stats) bool { return s.Active == 0 && s.Completed == 1 })
				s := l.stats()
				if s.Accepted != 1 || s.Established != 1 || s.Dials != 1 || s.Dialling != 0 || s.BadTag+s.BadChecksum+s.Malformed+s.Unexpected != 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	})
}

// A client that begins anew from the same port, since it has lost its association, is served by a backend that is
// there, also after an upgrade.
func TestRestartOfClient(t *testing.T) {
	for _, upgrade := range []bool{false, true} {
		t.Run(fmt.Sprintf("upgrade=%v", upgrade), func(t *testing.T) {
			l := only(t, Socket, testbed.Config{Pods: 2}, settings{})
			accepted := l.serve(l.Pods...)
			const from = 7010
			for i, pod := range l.Pods {
				l.backends(0, pod)
				client, err := l.tryDial(l.Client, from, patience)
				check(t, err)
				server := l.accept(accepted[i])
				ask(t, client, server, message{data: []byte("hello")})
				ask(t, server, client, message{data: []byte("welcome")})
				if i > 0 {
					break
				}
				if upgrade {
					l.order(order{Do: "upgrade", Loops: 2})
				}
				defer expectEnd(t, server, "the backend of before")
				to := "blackhole " + l.frontend.Addr().String()
				l.Client.Run(t, "sh", "-c", "ip route add "+to)
				client.abort() // the route drops the ABORT
				l.Client.Run(t, "sh", "-c", "ip route del "+to)
			}
			if s := l.stats(); s.Active != 1 || s.Accepted != 2 || s.Established != 2 || s.ClientAborts != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}
