package checks

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/probes"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

const patience = 20 * time.Second

// start runs a Checker of a Balancer, which tells of ejections.
func start(t *testing.T) (*balancer.Balancer, *Checker, <-chan lb.Ejection) {
	events := make(chan lb.Ejection, 100)
	b := &balancer.Balancer{Outlier: lb.DefaultOutlier, OnEjection: func(e lb.Ejection) { events <- e }}
	c := New(b, 0)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return b, c, events
}

// next waits for the next report.
func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing is reported")
		panic("not reached")
	}
}

func service(name, check string, backends ...netip.AddrPort) *lb.Service {
	s := &lb.Service{ID: lb.ID{Namespace: "default", Name: name, Protocol: lb.TCP},
		Policies: &lb.Policies{ReadinessProbe: check}}
	for _, addr := range backends {
		s.Backends = append(s.Backends, lb.Backend{Addr: addr, Ready: true, Serving: true})
	}
	return s
}

func update(t *testing.T, c *Checker, services ...*lb.Service) {
	t.Helper()
	table, err := lb.NewTable(services, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	c.lb.Update(table)
	c.Changed()
}

// answering is a server whose status can be changed, and that counts how often it is asked.
type answering struct {
	addr          netip.AddrPort
	status, asked atomic.Int64
}

func answer(t *testing.T, status int64) *answering {
	a := new(answering)
	a.status.Store(status)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a.asked.Add(1)
		w.WriteHeader(int(a.status.Load()))
	}))
	t.Cleanup(server.Close)
	a.addr = server.Listener.Addr().(*net.TCPAddr).AddrPort()
	return a
}

const probeText = "{httpGet: {path: /ready}, periodSeconds: 1, failureThreshold: 2}"

// TestChecker: an endpoint that fails as often as the threshold says gets no connections, and gets them again when it
// passes; one of a Service that requests no check any more gets them at once.
func TestChecker(t *testing.T) {
	b, c, events := start(t)
	good, bad := answer(t, 200), answer(t, 503)
	update(t, c, service("web", probeText, good.addr, bad.addr), service("plain", "", good.addr, bad.addr))
	if e := next(t, events); e.Returned || !e.Check || e.Backend != bad.addr || e.Service.Name != "web" || e.Err.Error() != "status 503" {
		t.Errorf("%+v", e)
	}
	if n := bad.asked.Load(); n != 2 {
		t.Errorf("it was asked %d times, want 2", n)
	}
	bad.status.Store(204)
	if e := next(t, events); !e.Returned || !e.Check || e.Backend != bad.addr {
		t.Errorf("%+v", e)
	}
	bad.status.Store(500)
	next(t, events)
	if s := c.Stats(); s.Failing != 1 || s.Failed < 4 || s.Passed < 4 || s.Postponed != 0 {
		t.Errorf("%+v", s)
	}
	update(t, c, service("web", "", good.addr, bad.addr))
	if e := next(t, events); !e.Returned || b.Health().Failing() != 0 {
		t.Errorf("%+v, %d are failing", e, b.Health().Failing())
	}
	update(t, c, service("web", probeText, bad.addr)) // nothing wakes it meanwhile
	if e := next(t, events); e.Returned || e.Backend != bad.addr {
		t.Errorf("%+v", e)
	}
}

// TestPortsAreCheckedOnce: what the ports of a Service have in common is asked once, and concerns all of them.
func TestPortsAreCheckedOnce(t *testing.T) {
	b, c, events := start(t)
	bad := answer(t, 503)
	check := fmt.Sprintf("{httpGet: {port: %d}, periodSeconds: 2, failureThreshold: 1}", bad.addr.Port())
	var services []*lb.Service
	for i := range 10 {
		s := service("web", check, netip.AddrPortFrom(bad.addr.Addr(), uint16(i+1)), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), uint16(i+1)))
		s.Port = fmt.Sprint("p", i)
		services = append(services, s)
	}
	update(t, c, services...)
	seen := make(map[lb.ID]bool)
	for range 20 {
		seen[next(t, events).Service] = true
	}
	if n := bad.asked.Load(); n != 1 || len(seen) != 10 || b.Health().Failing() != 20 {
		t.Errorf("asked %d times, %d ports know, %d endpoints are failing", n, len(seen), b.Health().Failing())
	}
}

// TestPROXYHeader: a check of the port that gets PROXY headers says that it is the proxy's own, at any other port
// nothing.
func TestPROXYHeader(t *testing.T) {
	for version, want := range []string{"GET /ready HTTP/1.1\r\n", "PROXY UNKNOWN\r\n",
		"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addr := l.Addr().(*net.TCPAddr).AddrPort()
		s := service("web", "{httpGet: {path: /ready}, periodSeconds: 1}", addr)
		s.Policies.ProxyProtocol = []string{"", "v1", "v2"}[version]
		_, checker, _ := start(t)
		update(t, checker, s)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Errorf("version %d: %q, %v, want %q", version, got, err, want)
		}
		other, err := probes.Parse(fmt.Sprintf("tcpSocket: {port: %d}", addr.Port()%65535+1))
		if err != nil {
			t.Fatal(err)
		}
		if at := other.At(s, addr); at.Proxy != 0 {
			t.Errorf("another port is checked with version %d", at.Proxy)
		}
	}
}

// TestStoppedProcess: a check that ends long after its timeout says that this process was stopped, and nothing of the
// endpoint. Time is synctest's.
func TestStoppedProcess(t *testing.T) {
	for late, want := range map[time.Duration]bool{tolerated + time.Millisecond: false, 0: true} {
		synctest.Test(t, func(t *testing.T) {
			b := &balancer.Balancer{Outlier: lb.DefaultOutlier}
			c := New(b, 0)
			once := func(context.Context, probes.Place) error {
				time.Sleep(time.Second + late) // of synctest
				return context.DeadlineExceeded
			}
			c.probes = map[string]*probes.Probe{"silent": {Period: 4 * time.Second, Timeout: time.Second, Failures: 1,
				Successes: 1, Once: once}}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { c.Run(ctx) })
			update(t, c, service("web", "silent", netip.MustParseAddrPort("127.0.0.1:9")))
			time.Sleep(time.Minute) // of synctest
			if s := c.Stats(); s.Failed > 0 != want || b.Health().Failing() > 0 != want {
				t.Errorf("%v after its timeout: %+v", late, s)
			}
			cancel()
			running.Wait()
		})
	}
}
