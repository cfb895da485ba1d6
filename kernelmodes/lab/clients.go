package lab

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// Remembering is an engine that takes over which backends clients had.
type Remembering interface {
	Engine
	Clients(context.Context, *lb.Service, int64) ([]lb.Client, error)
	Remember(context.Context, *lb.Service, []lb.Client) error
}

// Clients has an engine of each family remember clients, which are listed then and get to their backends.
func Clients(t *testing.T, engine func(ipv6 bool) Remembering) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(testbed.Family(ipv6), func(t *testing.T) {
			tb := testbed.NewT(t, testbed.Config{Pods: 3})
			s := Plain(ipv6, 1)
			s.AffinityTimeout = int64(time.Hour)
			for _, pod := range tb.Pods {
				testbed.Keep(t)(pod.WhoTCP(":8080"))
				s.Backends = append(s.Backends, Backend(pod, ipv6, 8080))
			}
			e := engine(ipv6)
			tb.Node.DoT(t, func() error { return e.Sync(t.Context(), Whole(s), lb.Node{}) })
			remembered(t, tb, e, &s)
		})
	}
}

func remembered(t *testing.T, tb *testbed.Testbed, e Remembering, s *lb.Service) {
	who := func() string { return tb.Client.Ask("tcp", s.Addresses[0].Addr.String(), testbed.Patience) }
	const now = int64(time.Hour)
	clients := func() (out []lb.Client) {
		tb.Node.DoT(t, func() (err error) { out, err = e.Clients(t.Context(), s, now); return err })
		return out
	}
	if have := clients(); len(have) != 0 {
		t.Errorf("there was no client, and %v are remembered", have)
	}
	who()
	client := tb.Client.Addr(s.IPv6)
	for i, b := range s.Backends {
		other, gone := IP(s.IPv6, "node", 100+i), netip.AddrPortFrom(IP(s.IPv6, "pod", 999), 1)
		known := []lb.Client{
			{Addr: other, Backend: b.Addr}, {Addr: client, Backend: b.Addr}, {Addr: other, Backend: gone},
		}
		if err := tb.Node.Do(func() error { return e.Remember(t.Context(), s, known) }); err != nil {
			if os.IsPermission(err) {
				testbed.Missing(t, err.Error())
			}
			t.Fatal(err)
		}
		for range 4 {
			if got := who(); got != tb.Pods[i].Name {
				t.Errorf("a client that is remembered at %s gets to %q", tb.Pods[i].Name, got)
			}
		}
		found := 0
		for _, c := range clients() {
			if c.LastUsed > now || c.LastUsed < now-int64(time.Minute) {
				t.Errorf("%v was last there %v ago", c.Addr, time.Duration(now-c.LastUsed))
			}
			if c.Addr == client {
				found++
				if c.Backend != b.Addr {
					t.Errorf("the client is remembered at %v, not at %v", c.Backend, b.Addr)
				}
			}
		}
		if found != 1 {
			t.Errorf("the client is remembered %d times", found)
		}
	}
}
