package sctp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// TestMain can run the test binary as a Server that takes orders, so that all of it
// is in the namespace of the node.
func TestMain(m *testing.M) {
	os.Exit(testbed.Main(m, testbed.Programs{"proxy": func([]string) int {
		if err := obey(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}}))
}

// order is what a test wants of the Server. The answer is an answer in JSON.
type order struct {
	Do       string // setup, table, listen, unlisten, upgrade, stats, shutdown, close
	Engine   Engine
	Loops    int
	Server   settings
	Backends []netip.AddrPort
	Owned    []netip.AddrPort // addresses of another Service
	Affinity time.Duration
	Drain    int64 // policy of the Service
	Most     int32 // MaxConnections of the Service
	Addr     netip.AddrPort
	Timeout  time.Duration
}

// settings are those of Server that tests change.
type settings struct {
	MaxAssociations int
	IdleTimeout     time.Duration
	DialTimeouts    []time.Duration
}

type answer struct {
	Err   string
	Addr  netip.AddrPort
	Why   string
	Stats Stats
	Found []look.Info
	Ended []look.Ended              // what was logged so far
	Times [balancer.Measures]uint64 // how many were counted
}

// obey runs a Server by orders until there are no more.
func obey(in io.Reader, out io.Writer) (err error) {
	var p proxied
	defer func() { err = errors.Join(err, p.close()) }()
	orders, answers := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		if err := p.obey(&o, &a); err != nil {
			a.Err = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// proxied is the Server of the process, and its one Service, whose frontends are
// the addresses that it listens on.
type proxied struct {
	loops     *eventloop.Group
	balancer  *balancer.Balancer
	server    *Server
	frontends []netip.AddrPort
	last      order
	before    int // descriptors

	mu    sync.Mutex // guards ended
	ended []look.Ended
}

// log keeps what has ended.
func (p *proxied) log(e *look.Ended) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = append(p.ended, *e)
}

// newBalancer returns one whose Services are logged and timed.
func newBalancer(loops int) *balancer.Balancer {
	return &balancer.Balancer{Loops: loops, Timed: 2, Defaults: lb.Policies{AccessLog: "all"}}
}

// close ends the Server, and looks what it leaves behind.
func (p *proxied) close() error {
	if p.server == nil {
		return nil
	}
	p.server.Close()
	s := p.server.Stats()
	err := p.loops.Close()
	if n := descriptors(); n != p.before {
		err = errors.Join(err, fmt.Errorf("%d descriptors are open after Close, %d were before", n, p.before))
	}
	if s.Active != 0 || s.Dialling != 0 {
		err = errors.Join(err, fmt.Errorf("after Close: %+v", s))
	}
	var in, out uint64
	for _, b := range p.balancer.Counters().All() {
		in, out = in+b.BytesIn, out+b.BytesOut
		for _, e := range b.Backends {
			if e.InFlight != 0 {
				err = errors.Join(err, fmt.Errorf("after Close: %d choices of %v are not done", e.InFlight, e.Addr))
			}
		}
	}
	// What is sent again after an end belongs to no Service any more.
	if in > s.BytesIn || out > s.BytesOut || in == 0 && s.BytesIn > 0 || out == 0 && s.BytesOut > 0 {
		err = errors.Join(err, fmt.Errorf("the Service counts %d bytes in and %d out, the Server %d and %d",
			in, out, s.BytesIn, s.BytesOut))
	}
	return err
}

func descriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}

func (p *proxied) obey(o *order, a *answer) (err error) {
	switch o.Do {
	case "setup":
		p.balancer = newBalancer(o.Loops)
		// The runtime's poller and what this opens stay.
		if _, err := os.ReadFile("/proc/self/stat"); err != nil {
			return err
		}
		p.before = descriptors()
		if p.loops, err = eventloop.NewGroup(o.Loops); err != nil {
			return err
		}
		p.server = &Server{Engine: o.Engine, Config: Config{
			Config: session.Config{Loops: p.loops, LB: p.balancer, DialTimeouts: o.Server.DialTimeouts,
				Log: p.log},
			MaxAssociations: o.Server.MaxAssociations, IdleTimeout: o.Server.IdleTimeout}}
		err = p.server.Choose()
		_, a.Why = p.server.InUse()
		return err
	case "table":
		p.last = *o
		return p.update()
	case "listen":
		f := lb.Frontend{Protocol: lb.SCTP, Addr: o.Addr}
		if a.Addr, err = p.server.Listen(f, o.Addr); err == nil && o.Addr.Port() != 0 {
			p.frontends = append(p.frontends, o.Addr)
			err = p.update()
		}
		return err
	case "unlisten":
		p.server.Unlisten(lb.Frontend{Protocol: lb.SCTP, Addr: o.Addr})
		return nil
	case "upgrade":
		return p.upgrade(o.Loops)
	case "stats":
		a.Stats = p.server.Stats()
		return nil
	case "look":
		for loop := range len(p.loops.Loops()) + 1 { // one more than there are
			for from := 0; from != look.End && err == nil; {
				from, err = p.server.Look(loop, from, &look.Query{Name: "s"}, func(i look.Info) bool {
					i.Loop, a.Found = loop, append(a.Found, i)
					return len(a.Found)%3 != 0 // in small parts
				})
			}
		}
		return err
	case "log":
		p.mu.Lock()
		a.Ended = slices.Clone(p.ended)
		p.mu.Unlock()
		p.balancer.Counters().Times(func(_ lb.ID, of *balancer.Times) {
			for m := range of {
				for _, n := range of[m].Buckets {
					a.Times[m] += n
				}
			}
		})
		return nil
	case "shutdown":
		ctx, cancel := context.WithTimeout(context.Background(), o.Timeout)
		defer cancel()
		return p.server.Shutdown(ctx)
	}
	return fmt.Errorf("order %q is unknown", o.Do)
}

func (p *proxied) update() error {
	var services []*lb.Service
	for _, ipv6 := range []bool{false, true} {
		s := &lb.Service{ID: lb.ID{Name: "s", Protocol: lb.SCTP, IPv6: ipv6}, AffinityTimeout: int64(p.last.Affinity)}
		if p.last.Drain != 0 || p.last.Most != 0 {
			s.Policies = &lb.Policies{OnEndpointRemoved: p.last.Drain, MaxConnections: p.last.Most}
		}
		for _, f := range p.frontends {
			if f.Addr().Is6() == ipv6 {
				s.Addresses = append(s.Addresses, lb.Address{Addr: f, Kind: lb.NodePort})
			}
		}
		for _, b := range p.last.Backends {
			if b.Addr().Is6() == ipv6 {
				s.Backends = append(s.Backends, lb.Backend{Addr: b, Ready: true, Serving: true})
			}
		}
		services = append(services, s)
	}
	for i, a := range p.last.Owned {
		services = append(services, &lb.Service{ID: lb.ID{Name: fmt.Sprint("other-", i), Protocol: lb.SCTP},
			Addresses: []lb.Address{{Addr: a}}})
	}
	table, err := lb.NewTable(services, lb.Node{})
	p.balancer.Update(table)
	p.server.TableChanged()
	return err
}
