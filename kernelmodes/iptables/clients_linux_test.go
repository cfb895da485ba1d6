package iptables

import (
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestParseList reads a list as the kernel prints it.
func TestParseList(t *testing.T) {
	text := "src=192.0.2.1 ttl: 64 last_seen: 4295011534 oldest_pkt: 2 4295011230, 4295011534\n" +
		"src=2001:0db8:0000:0000:0000:0000:0000:0001 ttl: 0 last_seen: 7 oldest_pkt: 1 7\n"
	backend := netip.MustParseAddrPort("10.244.1.10:80")
	have, err := parseList([]byte(text), backend)
	want := []lb.Client{
		{Addr: netip.MustParseAddr("192.0.2.1"), Backend: backend, LastUsed: 4295011534},
		{Addr: netip.MustParseAddr("2001:db8::1"), Backend: backend, LastUsed: 7},
	}
	if err != nil || !slices.Equal(have, want) {
		t.Errorf("have %v, %v, want %v", have, err, want)
	}
	for _, bad := range []string{"src=192.0.2.1\n", "src=x ttl: 64 last_seen: 1 oldest_pkt: 1 1\n", "src=192.0.2.1 ttl: 64 last_seen: x oldest_pkt: 1 1\n"} {
		if _, err := parseList([]byte(bad), backend); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// TestClients: clients that are written are listed, and the kernel sends them to their backends.
func TestClients(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		v := variant{ipv6: ipv6}
		t.Run(v.command(), func(t *testing.T) {
			tb := testbed.NewT(t, testbed.Config{Pods: 3})
			s := plain(ipv6, 1)
			s.AffinityTimeout = int64(time.Hour)
			addr := func(h *testbed.Host) netip.Addr {
				if ipv6 {
					return h.Addr6
				}
				return h.Addr4
			}
			for _, pod := range tb.Pods {
				testbed.Keep(t)(pod.WhoTCP(":8080"))
				s.Backends = append(s.Backends, lb.Backend{Addr: at(addr(pod), 8080), Ready: true, Serving: true, Local: true})
			}
			e := v.engine()
			syncOn(t, tb.Node, e, lb.Node{}, s)
			who := func() string { return tb.Client.Ask("tcp", s.Addresses[0].Addr.String(), testbed.Patience) }
			const now = int64(time.Hour)
			clients := func() (out []lb.Client) {
				tb.Node.DoT(t, func() (err error) { out, err = e.Clients(t.Context(), &s, now); return err })
				return out
			}
			if have := clients(); len(have) != 0 {
				t.Errorf("there was no client, and %v are remembered", have)
			}
			who()
			for i, b := range s.Backends {
				other, gone := ip(ipv6, "node", 100+i), at(ip(ipv6, "pod", 999), 1)
				known := []lb.Client{
					{Addr: other, Backend: b.Addr}, {Addr: addr(tb.Client), Backend: b.Addr}, {Addr: other, Backend: gone},
				}
				if err := tb.Node.Do(func() error { return e.Remember(t.Context(), &s, known) }); err != nil {
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
					if c.Addr == addr(tb.Client) {
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
		})
	}
}
