package kernelflows

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// pause is how long one look through all Services keeps the next waiting.
const pause = time.Second

// Config is what Flows are made of. All are needed.
type Config struct {
	LB     *lb.Balancer
	Choice func(lb.ID) (agent.Choice, bool)
	Uses   func(agent.Path) bool // whether any Service is on a path
	Now    func() int64          // the clock of lb.Drain
	Local  func() ([]netip.Addr, error)
	Add    func(*look.Ended) // logs what has ended
	Sample int               // one of so many is logged that have ended as they should
	Log    *zap.Logger

	// Accounting says that the kernel counts packets and bytes, so that what has ended is counted, too.
	Accounting bool
}

// Flows are what the kernel forwards. Make them by New.
type Flows struct {
	Config
	changed chan struct{}
	here    atomic.Pointer[here]
	sample  look.Sample // of the goroutine of events

	mu       sync.Mutex           // guards the following
	events   *conntrack.Events    // nil: nothing is to be logged
	before   conntrack.EventStats // of subscriptions that have ended
	expected uint64               // how often Expect has listened
	applying bool                 // since then nothing was Changed
	closed   bool

	looking sync.Mutex // guards the following
	part    part

	counts counting
	whys   whys

	drained int64 // deadlines until then were heeded, also by the process before; of the goroutine of Run
}

// here is what is needed of this node to read an entry.
type here struct {
	local    map[netip.Addr]bool
	timeouts conntrack.Timeouts
}

// New returns Flows, which log and count nothing that ends until Run.
func New(c Config) *Flows {
	f := &Flows{Config: c, changed: make(chan struct{}, 1), drained: math.MinInt64}
	f.counts.ended = make(Counts)
	return f
}

// inUse reports whether any Service is on a kernel path.
func (f *Flows) inUse() bool {
	return slices.ContainsFunc(agent.Paths(), func(p agent.Path) bool { return p.InKernel() && f.Uses(p) })
}

// Changed has Run look again which Services are to be logged or counted. It does not wait.
func (f *Flows) Changed() {
	f.mu.Lock()
	f.applying = false
	f.mu.Unlock()
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// Run logs and counts what ends, and ends what has been drained for long enough, until ctx does.
func (f *Flows) Run(ctx context.Context) {
	defer f.Close()
	f.Changed()
	var due <-chan time.Time
	changed, failing, stuck := false, false, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.changed:
			changed = true
		case <-due:
			due = nil
		}
		err := f.endDrained(f.Now())
		if err != nil && !stuck {
			f.Log.Error("cannot end connections to drained endpoints on kernel paths, retrying", zap.Error(err))
		}
		stuck = err != nil
		if due == nil && changed {
			if err = f.follow(); err != nil && !failing {
				f.Log.Error("kernel paths are not logged and not counted", zap.Error(err))
			}
			changed, failing, due = false, err != nil, time.After(pause)
		}
		if due == nil && (stuck || failing) {
			due = time.After(pause)
		}
	}
}

// follow listens for the ends of what is to be logged or counted, or to nothing.
func (f *Flows) follow() error {
	f.prune()
	f.mu.Lock()
	expected := f.expected
	f.mu.Unlock()
	addrs, err := f.followed()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.applying || f.expected != expected:
		return err // more is to come, which is listened for: Changed says when it is there
	case err != nil || len(addrs) == 0:
		f.deafen()
		return err
	}
	if err := f.listen(); err != nil || f.closed {
		return err
	}
	return f.events.Only(addrs)
}

// Expect listens for the ends of all that the kernel forwards from now on, if they are to be logged or counted of
// Services that it is about to get, until Changed is called. It is to be called before their rules are written: where
// nothing listens when an entry is made the kernel has no event of its end, and a connection that is refused ends at
// once. Errors are those that Run logs.
func (f *Flows) Expect(d *lb.Delta) {
	if !f.expects(d) {
		return
	}
	if _, err := f.lookAround(); err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expected++
	f.applying = true
	if err := f.listen(); err == nil && !f.closed {
		_ = f.events.Everything()
	}
}

// expects reports whether a change has anything to log or count that may not be heard yet.
func (f *Flows) expects(d *lb.Delta) bool {
	logs := func(s *lb.Service) bool {
		some, _ := s.Requests().Or(&f.LB.Defaults).Logs()
		return f.Accounting || some
	}
	return slices.ContainsFunc(d.Added, logs) || slices.ContainsFunc(d.Changed, func(c lb.Change) bool {
		return logs(c.New) && (c.Addresses || !logs(c.Old))
	})
}

// listen listens, if nothing does. The caller holds f.mu.
func (f *Flows) listen() (err error) {
	if f.events == nil && !f.closed {
		f.events, err = conntrack.Listen(conntrack.Destroy, f.ended)
	}
	return err
}

// Close ends the logging and counting for good: the process that has taken over does it from now on.
func (f *Flows) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.deafen()
}

// deafen listens to nothing any more. The caller holds f.mu.
func (f *Flows) deafen() {
	events := f.events
	if f.events = nil; events == nil {
		return
	}
	_ = events.Close() // nothing can be lost
	s := events.Stats()
	f.before.Handled, f.before.Lost = f.before.Handled+s.Handled, f.before.Lost+s.Lost
}

// Stats count the events of entries to addresses of Services that are to be logged or counted.
func (f *Flows) Stats() conntrack.EventStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.before
	if f.events != nil {
		now := f.events.Stats()
		s.Handled, s.Lost = s.Handled+now.Handled, s.Lost+now.Lost
	}
	return s
}

// followed returns the addresses of what the kernel forwards and is to be logged or counted.
func (f *Flows) followed() (addrs []netip.Addr, err error) {
	if !f.inUse() {
		return nil, nil
	}
	nodePorts := false
	for _, s := range f.LB.Table().Services() {
		if len(s.Addresses) == 0 {
			continue
		}
		p := f.LB.Policies(lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr})
		if some, _ := p.Logs(); !some && !f.Accounting || f.path(s.ID) == "" {
			continue
		}
		for i := range s.Addresses {
			if addr := s.Addresses[i].Addr.Addr(); addr.IsUnspecified() {
				nodePorts = true
			} else {
				addrs = append(addrs, addr)
			}
		}
	}
	if len(addrs) == 0 && !nodePorts {
		return nil, nil
	}
	h, err := f.lookAround()
	if nodePorts && err == nil {
		for addr := range h.local {
			addrs = append(addrs, addr)
		}
	}
	return addrs, err
}

// lookAround reads what is needed of this node.
func (f *Flows) lookAround() (*here, error) {
	addrs, err := f.Local()
	if err != nil {
		return nil, err
	}
	h := &here{local: make(map[netip.Addr]bool, len(addrs))}
	for _, a := range addrs {
		h.local[a] = true
	}
	_ = h.timeouts.Read() // what is not known is not said
	f.here.Store(h)
	return h, nil
}

// path returns the kernel path that a service port is on; empty: it is on none.
func (f *Flows) path(id lb.ID) string {
	if c, ok := f.Choice(id); ok && c.Path.InKernel() {
		return c.Path.String()
	}
	return ""
}

// has reports whether a Service has an endpoint.
func has(s *lb.Service, addr netip.AddrPort) bool {
	return slices.ContainsFunc(s.Backends, func(b lb.Backend) bool { return b.Addr == addr })
}

// of returns whose an entry is, and the path that it is on, unless it is none that the kernel forwards for a Service:
// one that is not translated is its own, or an address without rules, and one that this node answers is a socket's,
// where no endpoint is on it.
func (f *Flows) of(e *conntrack.Entry, h *here) (s *lb.Service, path string, ok bool) {
	if e.Protocol == 0 || e.Replies == e.Dst {
		return nil, "", false
	}
	s, at, ok := f.LB.Table().Lookup(lb.Frontend{Protocol: e.Protocol, Addr: e.Dst})
	if !ok || at.Addr.Addr().IsUnspecified() && !h.local[e.Dst.Addr()] {
		return nil, "", false
	}
	path = f.path(s.ID)
	if from := e.Replies.Addr(); (h.local[from] || from.IsLoopback()) && (path == "" || !has(s, e.Replies)) {
		return nil, "", false
	}
	if path == "" {
		path = "kernel" // the Service has moved since
	}
	return s, path, true
}

// info says what an entry is that the kernel forwards for a Service.
func (f *Flows) info(e *conntrack.Entry, h *here) (i look.Info, ok bool) {
	s, path, ok := f.of(e, h)
	if !ok {
		return i, false
	}
	i = look.Info{Protocol: e.Protocol, Client: e.Src, Asked: e.Dst, Service: s.ID, Backend: e.Replies,
		State: stateOf(e), Age: -1, In: e.In.Bytes, Out: e.Out.Bytes,
		Kernel: &look.Kernel{Path: path, Counted: e.Counted(), PacketsIn: e.In.Packets, PacketsOut: e.Out.Packets}}
	i.Idle, i.Known = h.timeouts.Quiet(e)
	return i, true
}

// stateOf is what a connection or flow does; empty: it has ended, and its entry stays for late packets.
func stateOf(e *conntrack.Entry) look.State {
	switch e.Protocol {
	case lb.UDP:
		if e.Status&conntrack.SeenReply == 0 {
			return look.Unreplied
		}
		return look.Established
	case lb.SCTP:
		switch {
		case e.State == conntrack.SCTPClosed && e.Status&conntrack.SeenReply != 0:
			return ""
		case e.State < conntrack.SCTPEstablished:
			return look.Dialling
		case e.State > conntrack.SCTPEstablished && e.State <= conntrack.SCTPShutdownAckSent:
			return look.Closing
		}
		return look.Established
	}
	switch e.State {
	case conntrack.TCPTimeWait, conntrack.TCPClose:
		return ""
	case conntrack.TCPSynSent, conntrack.TCPSynRecv, conntrack.TCPSynSent2:
		return look.Dialling
	case conntrack.TCPFinWait, conntrack.TCPCloseWait, conntrack.TCPLastAck:
		return look.HalfClosed
	}
	return look.Established
}
