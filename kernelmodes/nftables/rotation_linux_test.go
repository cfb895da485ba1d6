package nftables

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestTurns: endpoints that stay keep their turns as far as they can, every one has one, and the number stays.
func TestTurns(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var now rotation
	last := uint32(0)
	number := func() uint32 { last++; return last }
	for range 2000 {
		var backends []lb.Backend
		for i := range 12 {
			if r.IntN(3) > 0 {
				backends = append(backends, lab.Plain(false, 1, i+1).Backends...)
			}
		}
		was := now
		now = was.next(backends, number, r.IntN)
		want := make([]netip.AddrPort, 0, len(backends))
		for _, b := range backends {
			want = append(want, b.Addr)
		}
		have := slices.Clone(now.order)
		slices.SortFunc(have, netip.AddrPort.Compare)
		slices.SortFunc(want, netip.AddrPort.Compare)
		if !slices.Equal(have, want) || len(want) > 0 && now.number != 1 {
			t.Fatalf("%v, number %d, for %v", now.order, now.number, want)
		}
		gone, moved := 0, 0
		for i, addr := range was.order {
			switch at := slices.Index(now.order, addr); {
			case at < 0:
				gone++
			case at != i:
				moved++
			}
		}
		if moved > gone+2 { // the first turn and another one are exchanged
			t.Fatalf("%d of %v have another turn in %v, %d have gone", moved, was.order, now.order, gone)
		}
	}
}

// TestRotation: of k times as many connections as there are endpoints each gets k, in both families, by TCP and UDP,
// from elsewhere and from the node, after every change as well.
func TestRotation(t *testing.T) {
	n := newNode(t, testbed.Config{Pods: 3})
	for _, v6 := range []bool{false, true} {
		for _, p := range []lb.Protocol{lb.TCP, lb.UDP} {
			s := lab.Simple("web", testbed.VIP(v6, 80).String(), 80, p, n.Serving(3, p, v6, 8080)...)
			all := s.Backends
			for _, backends := range [][]lb.Backend{all, all[:2], all, all[1:]} {
				s.Backends = backends
				n.Sync(s)
				got := make(map[string]int)
				for i := range 4 * len(backends) {
					from := []*testbed.Host{n.Client, n.Node}[i%2]
					who, _, _ := strings.Cut(lab.Ask(from, p, s.Addresses[0].Addr), " ")
					got[who]++
				}
				for who, times := range got {
					if times != 4 || len(got) != len(backends) {
						t.Errorf("%v, %v, %d endpoints: %s has %d of %v", v6, p, len(backends), who, times, got)
					}
				}
			}
		}
	}
}

// TestAffinity: a client stays where it was while endpoints come and go, when the table is written anew, also by
// another process, and no longer than the timeout.
func TestAffinity(t *testing.T) {
	n := newNode(t, testbed.Config{Pods: 3})
	for i, v6 := range []bool{false, true} {
		s := lab.Simple("web", testbed.VIP(v6, 80).String(), 80, lb.TCP, n.Serving(3, lb.TCP, v6, 8080)...)
		s.AffinityTimeout = int64(time.Hour)
		n.Sync(s)
		who := func() string {
			name, _, _ := strings.Cut(lab.Ask(n.Client, lb.TCP, s.Addresses[0].Addr), " ")
			return name
		}
		first := who()
		stays := func(when string) {
			t.Helper()
			for range 4 {
				if got := who(); got != first {
					t.Fatalf("%s: the client was at %s and is at %s", when, first, got)
				}
			}
		}
		stays("at once")
		all := s.Backends
		other := slices.IndexFunc(n.Pods, func(h *testbed.Host) bool { return h.Name != first })
		s.Backends = slices.DeleteFunc(slices.Clone(all), func(b lb.Backend) bool {
			return b.Addr.Addr() == n.Pods[other].Addr(v6)
		})
		n.Sync(s)
		stays("after an endpoint has gone")
		s.Backends = all
		n.Sync(s)
		stays("after it has come back")
		n.engines[i].content.Forget()
		n.Sync(s)
		stays("after the table was written anew")
		n.engines[i] = &Engine{IPv6: v6}
		n.Sync(s)
		stays("in another process")
		s.AffinityTimeout = int64(time.Second)
		s.ID.Name = "short"
		n.Sync(s)
		seen := make(map[string]bool)
		testbed.Eventually(t, "a client gets elsewhere after the timeout", func() bool {
			seen[who()] = true
			time.Sleep(1100 * time.Millisecond) // longer than the timeout
			return len(seen) > 1
		})
		n.Sync()
	}
}

// TestFullSet: where the set of an endpoint's clients is full, others are served without being remembered.
func TestFullSet(t *testing.T) {
	n := newNode(t, testbed.Config{Pods: 1})
	s := lab.Simple("web", testbed.VIP(false, 80).String(), 80, lb.TCP, n.Serving(1, lb.TCP, false, 8080)...)
	s.AffinityTimeout = int64(time.Hour)
	n.Sync(s)
	many := make([]lb.Client, maxClients+5000) // those that came last are remembered
	for i := range many {
		many[i] = lb.Client{Addr: netip.AddrFrom4([4]byte{172, byte(i >> 16), byte(i >> 8), byte(i)}), Backend: s.Backends[0].Addr}
	}
	e := n.engines[0]
	n.Node.DoT(t, func() error {
		if err := e.Remember(t.Context(), &s, many); err != nil {
			return err
		}
		have, err := e.Clients(t.Context(), &s, 0)
		there := make(map[netip.Addr]bool)
		for _, c := range have {
			there[c.Addr] = true
		}
		if i := slices.IndexFunc(many[5000:], func(c lb.Client) bool { return !there[c.Addr] }); len(have) != maxClients || i >= 0 {
			t.Errorf("%d clients are remembered, of the last ones not number %d", len(have), i)
		}
		return err
	})
	if got := lab.Ask(n.Client, lb.TCP, s.Addresses[0].Addr); !strings.HasPrefix(got, "pod-0") {
		t.Errorf("a client gets %q", got)
	}
}

// TestClients: clients that are remembered are listed, and get to their endpoints.
func TestClients(t *testing.T) {
	lab.Clients(t, func(v6 bool) lab.Remembering { return &Engine{IPv6: v6} })
}

// TestLifetime: rules end with their lifetime unless they are renewed.
func TestLifetime(t *testing.T) {
	n := newNode(t, testbed.Config{Pods: 1})
	n.engines[0].Lifetime = 400 * time.Millisecond
	s := lab.Simple("web", testbed.VIP(false, 80).String(), 80, lb.TCP, n.Serving(1, lb.TCP, false, 8080)...)
	ask := func() bool {
		return strings.HasPrefix(n.Client.Ask("tcp", s.Addresses[0].Addr.String(), 100*time.Millisecond), "pod-0")
	}
	n.Sync(s)
	testbed.Eventually(t, "rules end", func() bool { return !ask() })
	n.Node.DoT(t, n.engines[0].Renew)
	testbed.Eventually(t, "rules match again", func() bool {
		n.Node.DoT(t, n.engines[0].Renew)
		return ask()
	})
	if !n.Verify() {
		t.Error("Verify finds something out of place")
	}
}
