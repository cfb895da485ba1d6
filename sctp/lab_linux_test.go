package sctp

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

const port = 3868 // of the backends

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// moment is long enough for a few packets to come and go, also on a busy machine.
func moment() time.Duration { return patience / 20 }

var errPatience = errors.New("nothing happens")

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
	l.frontend = l.order(order{Do: "listen", Addr: l.Node.At(l.ipv6, 9000)}).Addr
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

// on returns the SCTP of a host.
func (l *lab) on(h *testbed.Host) stack {
	l.t.Helper()
	s, ok := l.stacks[h]
	if !ok {
		var err error
		s, err = l.with.end(h, h.Addr(l.ipv6))
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
		o.Backends = append(o.Backends, h.At(l.ipv6, port))
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

// report has the test fail because of an error, and goes on.
var check, report = testbed.Check, testbed.Report
