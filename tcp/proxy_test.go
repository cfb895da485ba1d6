package tcp

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

const patience = 20 * time.Second // how long a test waits for what must happen

var frontend = netip.MustParseAddrPort("10.96.0.1:80")

// proxy is a Server on loopback whose clients all ask for frontend.
type proxy struct {
	*Server
	t    *testing.T
	addr netip.AddrPort
}

// startProxy starts a Server for a Service of the given backends. configure may
// change its fields before it listens. Everything is closed, and checked for
// leaks, when the test ends.
func startProxy(t *testing.T, configure func(*Server), backends ...netip.AddrPort) *proxy {
	t.Helper()
	checkLeaks(t)
	loops := 2
	if !hasLoops || withoutLoops {
		loops = 0
	}
	p := newProxy(t, loops)
	p.serve(backends...)
	if configure != nil {
		configure(p.Server)
	}
	var err error
	p.addr, err = p.ListenSteered(netip.MustParseAddrPort("127.0.0.1:0"))
	check(t, err)
	return p
}

// newProxy returns a Server with so many loops, which does not listen yet.
func newProxy(t *testing.T, loops int) *proxy {
	t.Helper()
	p := &proxy{t: t, Server: &Server{
		Config: Config{LB: new(balancer.Balancer),
			OriginalDst: func(int) (netip.AddrPort, error) { return frontend, nil }},
	}}
	if loops == 0 {
		t.Cleanup(p.Close)
		return p
	}
	var err error
	p.Loops, err = eventloop.NewGroup(loops)
	check(t, err)
	t.Cleanup(func() {
		p.Close()
		if buffers, pipes := p.lent(); buffers+pipes != 0 {
			t.Errorf("%d buffers and %d pipes are still lent", buffers, pipes)
		}
		report(t, p.Loops.Close())
	})
	return p
}

// withoutLoops has startProxy start Servers that do without event loops.
var withoutLoops bool

// serve gives the Service these backends from now on.
func (p *proxy) serve(backends ...netip.AddrPort) {
	p.t.Helper()
	s := lb.Service{ID: lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP}, Addresses: []lb.Address{{Addr: frontend}}}
	for _, b := range backends {
		s.Backends = append(s.Backends, lb.Backend{Addr: b, Ready: true, Serving: true})
	}
	table, err := lb.NewTable([]*lb.Service{&s}, lb.Node{})
	check(p.t, err)
	p.LB.Update(table)
}

func (p *proxy) dial() *net.TCPConn {
	p.t.Helper()
	c, err := net.DialTimeout("tcp", p.addr.String(), patience)
	check(p.t, err)
	p.t.Cleanup(func() { _ = c.Close() })
	check(p.t, c.SetDeadline(time.Now().Add(patience)))
	return c.(*net.TCPConn)
}

// expectReset connects and wants to be reset, be it within the dial or after it.
func (p *proxy) expectReset() {
	p.t.Helper()
	c, err := net.DialTimeout("tcp", p.addr.String(), patience)
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	if !isReset(err) {
		p.t.Errorf("the client saw %v, want a reset", err)
	}
}

// eventually waits until what is true: for counters, which send no event.
func (p *proxy) eventually(what string, is func(Stats) bool) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for !is(p.Stats()) {
		if time.Now().After(deadline) {
			p.t.Fatalf("not within %v: %s; stats %+v", patience, what, p.Stats())
		}
		runtime.Gosched()
	}
}

// backend runs serve for each connection to a listener of its own.
func backend(t *testing.T, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil && gone(err): // as the Server does: a client may reset before it is accepted
				continue
			case err != nil:
				t.Errorf("accept at a backend: %v", err)
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// naming answers each connection with a name and ends.
func naming(t *testing.T, name string) netip.AddrPort {
	return backend(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, name) })
}

// echoing returns what it gets until the client has ended its stream.
func echoing(t *testing.T) netip.AddrPort {
	return backend(t, func(c *net.TCPConn) {
		_, _ = io.Copy(c, struct{ io.Reader }{c})
		_ = c.CloseWrite()
	})
}

// refusing returns an address without a listener.
func refusing(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

// fillQueue connects to a listener with a queue of 0, which takes one or two connections, until that fails, and returns
// the error.
func fillQueue(t *testing.T, addr netip.AddrPort) error {
	t.Helper()
	for range 8 {
		c, err := net.DialTimeout("tcp", addr.String(), 200*time.Millisecond)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	return nil
}

// checkLeaks has the test fail if it leaves descriptors or goroutines behind.
func checkLeaks(t *testing.T) {
	t.Helper()
	fds, goroutines := openDescriptors(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		deadline := time.Now().Add(patience)
		for openDescriptors(t) > fds || runtime.NumGoroutine() > goroutines {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<16)
				t.Fatalf("left behind: descriptors %d -> %d, goroutines %d -> %d\n%s", fds, openDescriptors(t),
					goroutines, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
			}
			runtime.Gosched()
		}
	})
}

// report has the test fail because of an error, and goes on.
var check, report = testbed.Check, testbed.Report
