package report

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// pause is how long one look through all Services keeps the next waiting.
const pause = time.Second

// Path is a data path by which the kernel forwards. The zero value is none.
type Path struct {
	Name   string
	Counts bool // the path itself counts what it forwards, which Config.ReadCounts reads
	Chosen bool // user space chooses the endpoints, and counts connections
}

// left is the path of connections whose Service has moved to user space since.
var left = Path{Name: "kernel"}

// Config is what Flows are made of. All are needed.
type Config struct {
	LB     *lb.Balancer
	Watch  *flows.Watch
	PathOf func(lb.ID) Path // of a service port; zero: user space forwards
	InUse  func() bool      // whether the kernel forwards for any Service
	Now    func() int64     // the clock of lb.Drain
	Local  func() ([]netip.Addr, error)
	Add    func(*look.Ended) // logs what has ended
	Sample int               // one of so many is logged that have ended as they should
	Log    *zap.Logger

	// ReadCounts passes what paths count themselves to visit, of each frontend and its endpoints.
	ReadCounts func(visit func(of lb.Frontend, sum Count, each map[netip.AddrPort]Count)) error

	// Accounting says that the kernel counts packets and bytes, so that what has ended is counted, too.
	Accounting bool
}

// Flows are what the kernel forwards. Make them by New.
type Flows struct {
	Config
	changed chan struct{}
	here    atomic.Pointer[here]
	sample  look.Sample // of the goroutine of events

	mu       sync.Mutex          // guards the following
	events   *flows.Subscription // nil: nothing is to be logged
	expected uint64              // how often Expect has listened
	applying bool                // since then nothing was Changed
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

// Changed makes Run look again which Services are to be logged or counted. It does not wait.
func (f *Flows) Changed() {
	f.mu.Lock()
	f.applying = false
	f.mu.Unlock()
	flows.Notify(f.changed)
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
		f.unsubscribeLocked()
		return err
	}
	return f.subscribeLocked(conntrack.Want{Kinds: conntrack.Destroy, Of: conntrack.To, Addrs: addrs})
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
	_ = f.subscribeLocked(conntrack.Want{Kinds: conntrack.Destroy, Of: conntrack.Any})
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

// subscribeLocked asks for events, until Close.
func (f *Flows) subscribeLocked(want conntrack.Want) (err error) {
	if f.closed {
		return nil
	}
	if f.events == nil {
		if f.events, err = f.Watch.Subscribe(f.ended); err != nil {
			return err
		}
	}
	return f.events.Want(want)
}

// Close ends the logging and counting for good: the process that has taken over does it from now on.
func (f *Flows) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.unsubscribeLocked()
}

// unsubscribeLocked ends the subscription.
func (f *Flows) unsubscribeLocked() {
	if f.events != nil {
		_ = f.events.Close() // nothing can be lost
		f.events = nil
	}
}

// followed returns the addresses of what the kernel forwards and is to be logged or counted.
func (f *Flows) followed() (addrs []netip.Addr, err error) {
	if !f.InUse() {
		return nil, nil
	}
	nodePorts := false
	for _, s := range f.LB.Table().Services() {
		if len(s.Addresses) == 0 {
			continue
		}
		p := f.LB.Policies(lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr})
		if some, _ := p.Logs(); !some && !f.Accounting || f.PathOf(s.ID) == (Path{}) {
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

// has reports whether a Service has an endpoint.
func has(s *lb.Service, addr netip.AddrPort) bool {
	return slices.ContainsFunc(s.Backends, func(b lb.Backend) bool { return b.Addr == addr })
}

// of returns whose an entry is, and the path that it is on. It is not ok if the kernel does not forward it for a
// Service: no translation, or a socket of this node answers where no endpoint is on it.
func (f *Flows) of(e *flows.Entry, h *here) (s *lb.Service, path Path, ok bool) {
	s, at, ok := f.LB.Table().Lookup(lb.Frontend{Protocol: e.Protocol, Addr: e.Dst})
	if !ok || e.Replies == e.Dst || at.Addr.Addr().IsUnspecified() && !h.local[e.Dst.Addr()] {
		return nil, path, false
	}
	path = f.PathOf(s.ID)
	moved := path == Path{}
	if from := e.Replies.Addr(); (h.local[from] || from.IsLoopback()) && (moved || !has(s, e.Replies)) {
		return nil, path, false
	}
	if moved {
		path = left
	}
	return s, path, true
}

// info says what an entry is that the kernel forwards for a Service.
func (f *Flows) info(e *flows.Entry, h *here) (i look.Info, path Path, ok bool) {
	s, path, ok := f.of(e, h)
	if !ok {
		return i, path, false
	}
	i = look.Info{Protocol: e.Protocol, Client: e.Src, Asked: e.Dst, Service: s.ID, Backend: e.Replies,
		State: flows.StateOf(e), Age: -1, In: e.In.Bytes, Out: e.Out.Bytes, Kernel: &look.Kernel{Path: path.Name,
			Counted: e.Counted(), PacketsIn: e.In.Packets, PacketsOut: e.Out.Packets}}
	i.Idle, i.Known = h.timeouts.Quiet(e)
	return i, path, true
}
