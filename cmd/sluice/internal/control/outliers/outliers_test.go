package outliers

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

var front = lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort("10.96.0.1:80")}

// TestTrials: an endpoint that refuses is ejected, stays so while it refuses, and returns when it listens again.
func TestTrials(t *testing.T) {
	b := &balancer.Balancer{Outlier: lb.DefaultOutlier}
	b.Outlier.BaseEjectionTime = int64(time.Second) // the first trial is after 33 ms
	events := make(chan lb.Ejection, 10)
	changed := make(chan lb.ID, 10)
	w := New(b, func(id lb.ID) { changed <- id }, func(e lb.Ejection) { events <- e })
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	defer running.Wait()
	defer cancel()

	good, dead := listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0")
	addr := dead.Addr().(*net.TCPAddr).AddrPort()
	_ = dead.Close()
	s := lb.Service{ID: lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: front.Addr}}}
	for _, a := range []netip.AddrPort{good.Addr().(*net.TCPAddr).AddrPort(), addr} {
		s.Backends = append(s.Backends, lb.Backend{Addr: a, Ready: true, Serving: true})
	}
	table, err := lb.NewTable([]*lb.Service{&s}, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	b.Update(table)
	for range 10 {
		c, err := b.Pick(balancer.Flow{Frontend: front})
		if err != nil {
			t.Fatal(err)
		}
		if c.Backend() == addr {
			c.Failed(syscall.ECONNREFUSED, eventloop.Now())
		} else {
			c.Answered()
			c.Done(nil)
		}
	}
	if e := next(t, events); e.Returned || e.Backend != addr {
		t.Fatalf("%+v, want that %s is ejected", e, addr)
	}
	listen(t, addr.String())
	start := time.Now()
	if e := next(t, events); !e.Returned || e.Backend != addr {
		t.Fatalf("%+v, want that %s has returned", e, addr)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if one, two := <-changed, <-changed; one != s.ID || two != s.ID {
		t.Errorf("%v and %v have changed, want %v", one, two, s.ID)
	}
}

func listen(t *testing.T, addr string) net.Listener {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func next(t *testing.T, events <-chan lb.Ejection) lb.Ejection {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("nothing is reported")
		return lb.Ejection{}
	}
}
