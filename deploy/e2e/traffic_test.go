package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// serve has hosts answer with their names on a port, TCP and UDP, IPv4 and IPv6.
func (l *lab) serve(port int, hosts ...*testbed.Host) {
	l.t.Helper()
	for _, h := range hosts {
		testbed.Keep(l.t)(h.WhoTCP(fmt.Sprintf(":%d", port)))
		testbed.Keep(l.t)(h.WhoUDP(fmt.Sprintf(":%d", port)))
	}
}

// slice is the manifest of an EndpointSlice of a Service, with hosts that are ready.
func slice(service string, n, port int, protocol string, hosts ...*testbed.Host) string {
	var endpoints []string
	for _, h := range hosts {
		endpoints = append(endpoints, endpoint(h, ""))
	}
	return sliceOf(service, n, "IPv4", fmt.Sprintf("{port: %d, protocol: %s}", port, protocol), endpoints...)
}

// endpoint is an entry of an EndpointSlice, with more fields in flow style.
func endpoint(h *testbed.Host, more string) string {
	node := "node"
	if strings.HasPrefix(h.Name, "remote-") {
		node = "remote-node"
	}
	return fmt.Sprintf("{addresses: [%s], nodeName: %s%s}", h.Addr4, node, more)
}

func sliceOf(service string, n int, family, port string, endpoints ...string) string {
	return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-%d, labels: {kubernetes.io/service-name: %s}}\n"+
		"addressType: %s\nports: [%s]\nendpoints: [%s]\n", service, n, service, family, port, strings.Join(endpoints, ", "))
}

// service is the manifest of a Service with a spec in flow style.
func service(name, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {%s}\n", name, spec)
}

// soon is how long one question may take while a change is awaited. A connection that
// started before its Service was served will never be answered: the kernel's
// connection tracking has seen its first packet go elsewhere.
const soon = time.Second

// expect waits until connections from a host to an address are answered by exactly the
// hosts that are named, in any order.
func (l *lab) expect(from *testbed.Host, network, addr string, want ...*testbed.Host) {
	l.t.Helper()
	var names []string
	for _, h := range want {
		names = append(names, h.Name)
	}
	slices.Sort(names)
	var got []string
	var err error
	l.within(patience, func() string {
		return fmt.Sprintf("%s from %s to %s is answered by %v; last: %v, %v", network, from, addr, names, got, err)
	}, func() bool {
		got = nil
		for range 3 * len(want) { // more than a whole rotation
			var name string
			if name, err = from.TryAsk(network, addr, soon); err != nil {
				return false
			}
			got = append(got, name)
		}
		slices.Sort(got)
		got = slices.Compact(got)
		return slices.Equal(got, names)
	})
}

// expectRefused waits until a host's connections are refused, and expectSilence until
// they are not answered.
func (l *lab) expectRefused(from *testbed.Host, network, addr string) {
	l.t.Helper()
	var err error
	l.within(patience, func() string {
		return fmt.Sprintf("%s from %s to %s is refused; last: %v", network, from, addr, err)
	}, func() bool {
		_, err = from.TryAsk(network, addr, soon)
		return testbed.IsRefused(err)
	})
}

func (l *lab) expectSilence(from *testbed.Host, network, addr string) {
	l.t.Helper()
	var err error
	l.within(patience, func() string {
		return fmt.Sprintf("%s from %s to %s is not answered; last: %v", network, from, addr, err)
	}, func() bool {
		_, err = from.TryAsk(network, addr, soon/2)
		return testbed.IsDropped(err)
	})
}

// load is traffic that goes on while something else happens: connections that stay
// open and say something now and then, and new ones all the time.
type load struct {
	t       testing.TB
	cancel  context.CancelFunc
	running sync.WaitGroup

	rounds  atomic.Int64 // answers on connections that stay open
	opened  atomic.Int64 // new connections that were answered
	mu      sync.Mutex
	refused []time.Time // new connections that were not
	lost    []error     // connections that stayed open and broke
}

// newLoad begins traffic from the client: to an echoing TCP address, and to one that
// answers with names.
func (l *lab) newLoad(open int, echo, names string) *load {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ld := &load{t: l.t, cancel: cancel}
	for range open {
		c, err := l.Client.Dial(l.ctx, "tcp", echo)
		l.check(err)
		ld.running.Go(func() { ld.talk(ctx, c) })
	}
	ld.running.Go(func() {
		for ctx.Err() == nil {
			_, err := l.Client.TryAsk("tcp", names, patience)
			if err != nil {
				ld.mu.Lock()
				ld.refused = append(ld.refused, time.Now())
				ld.mu.Unlock()
			} else {
				ld.opened.Add(1)
			}
			pause(ctx, 2*time.Millisecond)
		}
	})
	l.t.Cleanup(ld.stop)
	return ld
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// talk says something and reads it back until ctx ends.
func (ld *load) talk(ctx context.Context, c net.Conn) {
	defer c.Close()
	buf := make([]byte, 5)
	for ctx.Err() == nil {
		err := c.SetDeadline(time.Now().Add(patience))
		if err == nil {
			_, err = io.WriteString(c, "hello")
		}
		if err == nil {
			_, err = io.ReadFull(c, buf)
		}
		if err != nil || string(buf) != "hello" {
			ld.mu.Lock()
			ld.lost = append(ld.lost, fmt.Errorf("read %q: %w", buf, err))
			ld.mu.Unlock()
			return
		}
		ld.rounds.Add(1)
		pause(ctx, 10*time.Millisecond)
	}
}

// stop ends the traffic. It may be called again.
func (ld *load) stop() {
	ld.cancel()
	ld.running.Wait()
}

// expectNoLoss fails the test if any connection broke or was not answered.
func (ld *load) expectNoLoss() {
	ld.t.Helper()
	ld.mu.Lock()
	defer ld.mu.Unlock()
	ld.t.Logf("%d answers on connections that stayed open, %d new connections", ld.rounds.Load(), ld.opened.Load())
	if len(ld.lost) > 0 || len(ld.refused) > 0 {
		ld.t.Errorf("%d open connections broke (%v), %d new ones were not answered", len(ld.lost), errors.Join(ld.lost...), len(ld.refused))
	}
}
