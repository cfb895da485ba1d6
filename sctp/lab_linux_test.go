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
	"github.com/sluice-lb/sluice/sctp/kernel"
)

const port = 3868 // of the backends

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// moment is long enough for a few packets to come and go, also on a busy machine.
func moment() time.Duration { return patience / 20 }

var errPatience = errors.New("nothing happens")

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

// message is a user message and what has to stay with it.
type message struct {
	stream    uint16
	ppid      uint32
	unordered bool
	data      []byte
}

// peer is an association at one of its ends.
type peer interface {
	send(message) error
	// receive returns io.EOF after the end of the association.
	receive() (message, error)
	// shutdown ends the association when all data has arrived.
	shutdown() error
	// abort ends it at once.
	abort()
	// vanish has the end be silent from now on.
	vanish()
	// from is the other end, as this one sees it.
	from() netip.AddrPort
}

// stack is SCTP on a host.
type stack interface {
	listen(port uint16) (<-chan peer, error)
	unlisten(port uint16)
	dial(ctx context.Context, to netip.AddrPort, from uint16) (peer, error)
	close()
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
	Ended []look.Ended        // what was logged so far
	Times [lb.Measures]uint64 // how many were counted
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
	balancer  *lb.Balancer
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
func newBalancer(loops int) *lb.Balancer {
	return &lb.Balancer{Loops: loops, Timed: 2, Defaults: lb.Policies{AccessLog: "all"}}
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
	for _, b := range p.balancer.Stats() {
		in, out = in+b.BytesIn, out+b.BytesOut
		for _, e := range b.Backends {
			if e.InFlight != 0 {
				err = errors.Join(err, fmt.Errorf("after Close: %d choices of %v are not done", e.InFlight, e.Addr))
			}
		}
	}
	// What is sent again after an end belongs to no Service any more.
	if in > s.BytesIn || out > s.BytesOut || in == 0 && s.BytesIn > 0 || out == 0 && s.BytesOut > 0 {
		err = errors.Join(err, fmt.Errorf("the Service counts %d bytes in and %d out, the Server %d and %d", in, out, s.BytesIn, s.BytesOut))
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
		p.balancer.Times(func(_ lb.ID, of *lb.Times) {
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

// setup is what a test is run with: an engine, and the ends of associations that
// its kernel allows.
type setup struct {
	engine Engine
	end    func(h *testbed.Host, ip netip.Addr) (stack, error)
	absent error // why it cannot be tested here
}

// setups are all of them. A kernel allows one of the two.
func setups() []setup {
	missing := kernel.Missing()
	packets := setup{engine: Packet, end: func(h *testbed.Host, ip netip.Addr) (stack, error) { return newPion(h, ip) }}
	sockets := setup{engine: Socket, end: func(h *testbed.Host, ip netip.Addr) (stack, error) { return newKernel(h, ip) }}
	if missing == nil {
		packets.absent = errors.New("this kernel has SCTP and would abort what it does not know")
	}
	sockets.absent = missing
	return []setup{packets, sockets}
}

// withEach runs a test with every engine.
func withEach(t *testing.T, test func(t *testing.T, with setup)) {
	for _, s := range setups() {
		t.Run(s.engine.String(), func(t *testing.T) {
			if s.absent != nil {
				t.Skipf("NOT TESTED: the %s engine needs another kernel: %v", s.engine, s.absent)
			}
			test(t, s)
		})
	}
}

// only runs a test of what a single engine does.
func only(t *testing.T, engine Engine, cfg testbed.Config, o settings) *lab {
	t.Helper()
	all := setups()
	with := all[slices.IndexFunc(all, func(s setup) bool { return s.engine == engine })]
	if with.absent != nil {
		t.Skipf("NOT TESTED: the %s engine needs another kernel: %v", engine, with.absent)
	}
	return newLab(t, with, cfg, false, o)
}

// lab is hosts with a Server on the node.
type lab struct {
	*testbed.Testbed
	t        *testing.T
	with     setup
	ipv6     bool
	frontend netip.AddrPort
	mu       sync.Mutex
	orders   *json.Encoder
	answers  *json.Decoder
	stacks   map[*testbed.Host]stack
}

func newLab(t *testing.T, with setup, cfg testbed.Config, ipv6 bool, o settings) *lab {
	t.Helper()
	if o.DialTimeouts == nil {
		// A backend that is slow, as on a busy machine, may have accepted already.
		o.DialTimeouts = slices.Repeat([]time.Duration{patience}, 4)
	}
	l := &lab{t: t, with: with, Testbed: testbed.NewT(t, cfg), ipv6: ipv6, stacks: make(map[*testbed.Host]stack)}
	cmd := l.Node.Self(context.Background(), "proxy")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() {
		for _, s := range l.stacks {
			s.close()
		}
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the proxy: %v", err)
		}
	})
	l.orders, l.answers = json.NewEncoder(in), json.NewDecoder(out)
	l.order(order{Do: "setup", Engine: with.engine, Loops: 2, Server: o})
	l.frontend = l.order(order{Do: "listen", Addr: netip.AddrPortFrom(l.addr(l.Node), 9000)}).Addr
	return l
}

func (l *lab) try(o order) (answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var a answer
	if err := l.orders.Encode(o); err != nil {
		return a, err
	}
	if err := l.answers.Decode(&a); err != nil {
		return a, err
	}
	if a.Err != "" {
		return a, errors.New(a.Err)
	}
	return a, nil
}

func (l *lab) order(o order) answer {
	l.t.Helper()
	a, err := l.try(o)
	if err != nil {
		l.t.Fatalf("%s: %v", o.Do, err)
	}
	return a
}

func (l *lab) stats() Stats {
	l.t.Helper()
	return l.order(order{Do: "stats"}).Stats
}

// addr returns a host's address of the family under test.
func (l *lab) addr(h *testbed.Host) netip.Addr {
	if l.ipv6 {
		return h.Addr6
	}
	return h.Addr4
}

// on returns the SCTP of a host.
func (l *lab) on(h *testbed.Host) stack {
	l.t.Helper()
	s, ok := l.stacks[h]
	if !ok {
		var err error
		s, err = l.with.end(h, l.addr(h))
		check(l.t, err)
		l.stacks[h] = s
	}
	return s
}

// serve makes backends of hosts, and returns what they accept, in their order.
func (l *lab) serve(hosts ...*testbed.Host) []<-chan peer {
	l.t.Helper()
	var accepted []<-chan peer
	for _, h := range hosts {
		c, err := l.on(h).listen(port)
		check(l.t, err)
		accepted = append(accepted, c)
	}
	l.backends(0, hosts...)
	return accepted
}

// backends has the Service have these endpoints from now on.
func (l *lab) backends(affinity time.Duration, hosts ...*testbed.Host) {
	l.t.Helper()
	o := order{Do: "table", Affinity: affinity}
	for _, h := range hosts {
		o.Backends = append(o.Backends, netip.AddrPortFrom(l.addr(h), port))
	}
	l.order(o)
}

func (l *lab) dial(from *testbed.Host) peer {
	l.t.Helper()
	p, err := l.tryDial(from, 0, patience)
	if err != nil {
		l.t.Fatalf("%s asks %s: %v; %+v", from, l.frontend, err, l.stats())
	}
	return p
}

func (l *lab) tryDial(from *testbed.Host, port uint16, within time.Duration) (peer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return l.on(from).dial(ctx, l.frontend, port)
}

// associate makes an association with the only pod, and returns both ends.
func (l *lab) associate() (client, server peer) {
	l.t.Helper()
	accepted := l.serve(l.Pods...)
	client = l.dial(l.Client)
	return client, l.accept(accepted[0])
}

// accept returns the other end of an association.
func (l *lab) accept(c <-chan peer) peer {
	l.t.Helper()
	select {
	case p := <-c:
		return p
	case <-time.After(patience):
		l.t.Fatalf("no association arrives; %+v", l.stats())
		return nil
	}
}

// eventually waits until what is true, where no event reports it.
func (l *lab) eventually(what string, is func(Stats) bool) {
	l.t.Helper()
	var s Stats
	defer func() {
		if l.t.Failed() {
			l.t.Logf("%+v", s)
		}
	}()
	testbed.Within(l.t, patience, what, func() bool { s = l.stats(); return is(s) })
}

// gateway is the node's address towards its pods.
func (l *lab) gateway() netip.Addr {
	if l.ipv6 {
		return netip.MustParseAddr("2001:db8:244:1::1")
	}
	return netip.MustParseAddr("10.244.1.1")
}

// pause is between two looks at what no event reports.
func pause() {
	// There is none to wait for, as its callers say.
	time.Sleep(5 * time.Millisecond)
}

// report has the test fail because of an error, and goes on.
var check, report = testbed.Check, testbed.Report
