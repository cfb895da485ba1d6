package nftables

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// served is a Service whose endpoints are pods that answer.
func served(t *testing.T, tb *testbed.Testbed, address netip.AddrPort) lb.Service {
	s := lab.Plain(false, 1)
	s.Addresses = []lb.Address{{Addr: address}}
	for _, pod := range tb.Pods {
		testbed.Keep(t)(pod.WhoTCP(":8080"))
		s.Backends = append(s.Backends, lab.Backend(pod, false, 8080))
	}
	return s
}

// TestOwnAddress: a Service at an address of the node takes none of its other ports.
func TestOwnAddress(t *testing.T) {
	t.Parallel()
	tb := testbed.NewT(t, testbed.Config{Pods: 1})
	s := served(t, tb, netip.AddrPortFrom(tb.Node.Addr4, 80))
	testbed.Keep(t)(tb.Node.WhoTCP(":22"))
	syncOn(t, tb.Node, &Engine{}, lab.Whole(s))
	for port, want := range map[uint16]string{80: tb.Pods[0].Name, 22: tb.Node.Name} {
		if got := tb.Client.Ask("tcp", netip.AddrPortFrom(tb.Node.Addr4, port).String(), testbed.Patience); got != want {
			t.Errorf("port %d of the node: %s, want %s", port, got, want)
		}
	}
}

// TestFewerEndpoints: no client is refused while endpoints go, which have had their turns until then.
func TestFewerEndpoints(t *testing.T) {
	t.Parallel()
	tb := testbed.NewT(t, testbed.Config{Pods: 4})
	all := served(t, tb, netip.MustParseAddrPort("10.96.0.1:80"))
	few := all
	few.Backends = all.Backends[:2]
	e := &Engine{}
	syncOn(t, tb.Node, e, lab.Whole(all))
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var clients sync.WaitGroup
	defer clients.Wait()
	for range 2 {
		clients.Go(func() {
			for ctx.Err() == nil {
				c, err := tb.Client.Dial(ctx, "tcp", "10.96.0.1:80")
				if err == nil {
					_ = c.Close()
				} else if ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 500 {
		syncOn(t, tb.Node, e, lb.Delta{Changed: []lb.Change{{Old: &all, New: &few}}})
		syncOn(t, tb.Node, e, lb.Delta{Changed: []lb.Change{{Old: &few, New: &all}}})
	}
	end()
}

// TestLongerAffinity: the client that was remembered for less stays where it is, also when another process writes all.
func TestLongerAffinity(t *testing.T) {
	t.Parallel()
	tb := testbed.NewT(t, testbed.Config{Pods: 3})
	s := served(t, tb, netip.MustParseAddrPort("10.96.0.1:80"))
	ask := func() string { return tb.Client.Ask("tcp", "10.96.0.1:80", testbed.Patience) }
	s.AffinityTimeout = int64(time.Minute)
	e := &Engine{}
	syncOn(t, tb.Node, e, lab.Whole(s))
	first := ask()
	long := s
	long.AffinityTimeout = int64(time.Hour)
	syncOn(t, tb.Node, e, lb.Delta{Changed: []lb.Change{{Old: &s, New: &long}}})
	for range 2 {
		if got := ask(); got != first {
			t.Errorf("the client was at %s, and gets to %s", first, got)
		}
		syncOn(t, tb.Node, &Engine{}, lab.Whole(long))
	}
}
