package udp

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/counters"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// Listening is a frontend that a Server forwards.
type Listening struct {
	Frontend lb.Frontend
	FDs      []int // of its sockets; the kernel shares clients out among them in this order
}

// Frozen is all there is to know of one flow while nothing moves it. Its datagrams are
// in the kernel.
type Frozen struct {
	Listening int // position in Server.Listening
	Member    int // position in FDs of the socket that it came by
	FD        int // connected to the backend

	Client netip.AddrPort
	Scope  uint32     // interface of a link-local client
	Local  netip.Addr // that was asked

	Service lb.ID
	Addr    netip.AddrPort   // of the backend; invalid if the flow is leaving it
	Tried   []netip.AddrPort // backends that have refused since the last answer

	Attempts int // how many
	LastSize int // of the datagram sent last, bytes

	Born    int64         // when its first datagram came, on the clock of eventloop.Now
	In, Out uint64        // bytes that were passed on
	Idle    time.Duration // since the last datagram
	Leaving time.Duration // until it is gone, if it is leaving its backend; else 0
	Trial   time.Duration // for which datagrams go one by one to a backend that has not answered

	Header []byte // of the PROXY protocol, before each datagram to the backend; empty: none

	PlainIn, PlainOut bool // datagrams must go one by one, to the backend and to the client

	Heard  int64 // when the backend first answered the client's last datagram, on the clock of eventloop.Now, or 0
	Awaits int64 // since when the client waits for an answer, on the same clock, or 0

	Answered bool  // the backend has answered
	Known    bool  // something has followed, which shows that the client is there
	Silent   bool  // the backend has let the time for an answer pass
	Followed uint8 // questions that soon followed an answer

	Why lb.Why // it has this backend, as far as that is noted, to be logged
}

// Listening returns what the Server forwards, in a stable order. The descriptors stay
// the Server's; they may be used until the next Unlisten, Shutdown or Close.
func (s *Server) Listening() []Listening {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Listening
	for f, group := range s.listeners {
		l := Listening{Frontend: f}
		for _, member := range group {
			l.FDs = append(l.FDs, member.fd)
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b Listening) int {
		return cmp.Or(cmp.Compare(a.Frontend.Protocol, b.Frontend.Protocol), a.Frontend.Addr.Compare(b.Frontend.Addr))
	})
	return out
}

// Freeze passes every flow to visit, while the caller has halted the loops: of each
// Service on a loop those first that are the first to make room. The Frozen is visit's until it returns.
// Nothing is changed, so that the flows go on as soon as the loops resume.
func (s *Server) Freeze(visit func(*Frozen) error) error {
	type place struct{ listening, member int }
	places := make(map[*listener]place)
	for i, l := range s.Listening() {
		s.mu.Lock()
		for j, member := range s.listeners[l.Frontend] {
			places[member] = place{i, j}
		}
		s.mu.Unlock()
	}
	now := eventloop.Now()
	for _, sh := range s.shards {
		for f := range sh.waiting() {
			at, ok := places[f.ln]
			if !ok {
				continue // not reached: a listener closes its flows
			}
			frozen := f.freeze(now)
			frozen.Listening, frozen.Member = at.listening, at.member
			if err := visit(&frozen); err != nil {
				return err
			}
		}
	}
	return nil
}

// waiting goes through the flows of each Service in the order of Freeze.
func (sh *shard) waiting() iter.Seq[*flow] {
	return func(yield func(*flow) bool) {
		for _, h := range sh.services.all {
			for _, list := range h.flows {
				for f := list.last; f != nil; f = f.links[byService].prev {
					if !yield(f) {
						return
					}
				}
			}
		}
	}
}

func (f *flow) freeze(now int64) Frozen {
	f.meter.Flush(f.choice)
	out := Frozen{
		FD:     f.fd,
		Client: f.key.client, Scope: f.key.scope, Local: f.key.local,
		Service: f.choice.Service(), Addr: f.choice.Backend(),
		Attempts: f.attempts, LastSize: f.lastSize, Header: f.header,
		Born:    f.born,
		Idle:    time.Duration(now - f.active),
		PlainIn: f.plain[toBackend], PlainOut: f.plain[toClient],
		Heard: f.heard, Awaits: f.awaits,
		Answered: f.replied, Known: f.assurance == known, Silent: f.silent, Followed: f.followed,
	}
	out.In, out.Out = f.meter.Total()
	if f.trial != 0 {
		out.Trial = time.Duration(max(f.trial-now, 1))
	}
	if f.tried != nil {
		out.Tried = f.tried.Backends()
	}
	if f.log != nil {
		out.Why = f.log.why
	}
	if f.leaving != 0 {
		out.Leaving = time.Duration(max(f.leaving-now, 1))
	}
	return out
}

// Adopt takes over what another Server has forwarded, with its descriptors, and its flows, of
// which those of one loop are in the order of Freeze. The kernel shares clients out among the
// sockets of a frontend by their number, so that neither more nor fewer are made. thawed is
// called on a loop for each flow. A flow whose socket cannot be watched is dropped; so is one
// whose frontend is forwarded already, as is that.
func (s *Server) Adopt(listening []Listening, flows []Frozen, thawed func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	all := make([][]*listener, len(listening))
	var errs []error
	for i, l := range listening {
		var err error
		if all[i], err = s.adopt(l); err != nil {
			errs = append(errs, err)
		}
	}
	byShard := make([][]*Frozen, len(s.shards))
	for i := range flows {
		f := &flows[i]
		if f.Listening >= len(all) || f.Member >= len(all[f.Listening]) {
			_ = unix.Close(f.FD)
			continue
		}
		at := slices.Index(s.shards, all[f.Listening][f.Member].shard)
		byShard[at] = append(byShard[at], f)
	}
	for i, sh := range s.shards {
		errs = append(errs, sh.loop.Do(func() {
			for _, f := range byShard[i] {
				sh.thaw(all[f.Listening][f.Member], f)
				thawed()
			}
		}))
	}
	for _, group := range all {
		for _, ln := range group {
			errs = append(errs, ln.start())
		}
	}
	return errors.Join(errs...)
}

// adopt makes the listeners of a frontend, which do not receive yet. The caller holds
// s.mu.
func (s *Server) adopt(l Listening) ([]*listener, error) {
	if _, ok := s.listeners[l.Frontend]; ok || s.closed {
		for _, fd := range l.FDs {
			_ = unix.Close(fd)
		}
		return nil, fmt.Errorf("take over %s: forwarded already, or closed", l.Frontend)
	}
	var group []*listener
	s.Descriptors.Listening(int64(len(l.FDs)))
	for i, sh := range s.members(len(l.FDs)) {
		ln := sh.newListener(l.Frontend)
		ln.fd = l.FDs[i]
		// A process of an earlier version did not; without it all is as it was.
		_ = reportHops(ln.fd, l.Frontend.Addr.Addr())
		group = append(group, ln)
	}
	s.listeners[l.Frontend] = group
	return group, nil
}

// thaw makes a flow of from.
func (sh *shard) thaw(ln *listener, from *Frozen) {
	now := eventloop.Now()
	sh.server.Descriptors.Adopt(1)
	f := &flow{
		ln:       ln,
		key:      flowKey{client: from.Client, local: from.Local, scope: from.Scope},
		attempts: from.Attempts,
		born:     from.Born,
		active:   now - int64(from.Idle),
		meter:    balancer.ResumeMeter(from.In, from.Out),
		loopFlow: loopFlow{fd: from.FD, lastSize: from.LastSize},
	}
	if from.Addr.IsValid() {
		f.choice = sh.server.LB.Memory().Resume(from.Service, from.Addr)
	}
	if len(from.Tried) > 0 {
		tried := sh.server.LB.Memory().ResumeTried(from.Service, from.Tried)
		f.tried = &tried
	}
	if len(from.Header) > 0 {
		f.header = from.Header
	}
	f.plain = [2]bool{toBackend: from.PlainIn, toClient: from.PlainOut}
	if from.Trial > 0 {
		f.trial = now + int64(from.Trial)
	}
	f.heard, f.replied, f.silent, f.followed = from.Heard, from.Answered, from.Silent, min(from.Followed, settling)
	if from.Known {
		f.assurance = known
	}
	ln.keep(f, from.Service.Service())
	sh.why = from.Why
	f.begin()
	if f.replied {
		f.rests()
	}
	if from.Leaving > 0 {
		f.leaveBy(now + int64(from.Leaving))
	}
	if f.expect(from.Awaits); f.awaits != 0 {
		f.later(now, max(0, f.awaits+f.patience(now)-now))
	} else {
		f.later(now, f.rest(now))
	}
	if err := sh.io.watch(f); err != nil {
		sh.count.NoDescriptor.Add(1)
		f.close()
	}
}

// Restore adds the counters of another Server to this one's, so that they go on where
// those have stopped. The gauge is left out: each flow brings its own.
func (s *Server) Restore(from Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	counters.Restore(&s.shards[0].count.stats, &from)
}
