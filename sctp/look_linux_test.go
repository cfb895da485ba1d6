package sctp

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestLook: each association is found once, with what it has passed, also after others have ended, and after it has
// moved to another process.
func TestLook(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		const n = 10
		l := newLab(t, with, testbed.Config{Pods: 1}, false, settings{})
		accepted := l.serve(l.Pods...)
		var clients, servers []peer
		for range n {
			clients = append(clients, l.dial(l.Client))
			servers = append(servers, l.accept(accepted[0]))
		}
		judge := func(open int, in, out uint64) {
			t.Helper()
			found, seen := l.order(order{Do: "look"}).Found, make(map[netip.AddrPort]bool)
			for _, i := range found {
				if i.Protocol != lb.SCTP || i.Client.Addr() != l.Client.Addr(l.ipv6) || i.Service.Name != "s" ||
					i.Backend != l.Pods[0].At(l.ipv6, port) || i.State != look.Established ||
					!i.Asked.IsValid() || i.In != in || i.Out != out || seen[i.Client] {
					t.Errorf("one is %+v", i)
				}
				seen[i.Client] = true
			}
			if len(found) != open {
				t.Errorf("%d are found, want %d", len(found), open)
			}
		}
		for i := range clients {
			ask(t, clients[i], servers[i], message{data: []byte("hello")})
			ask(t, servers[i], clients[i], message{data: []byte("welcome")})
		}
		judge(n, 5, 7)
		for i := range n / 2 {
			if err := clients[i].shutdown(); err != nil {
				t.Fatal(err)
			}
			expectEnd(t, servers[i], "the server")
		}
		l.eventually("half of them are over", func(s Stats) bool { return s.Active == n/2 })
		judge(n/2, 5, 7)
		l.order(order{Do: "upgrade", Loops: 3})
		for i := n / 2; i < n; i++ {
			ask(t, clients[i], servers[i], message{data: []byte("again")})
			ask(t, servers[i], clients[i], message{data: []byte("farewell")})
		}
		judge(n/2, 10, 15)
	})
}
