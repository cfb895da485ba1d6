package queue

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
)

// Probe returns what engines are to be made with, a queue for each core, and checks that this host can forward so: with
// queues of nf_tables, or else by the target of iptables. The error is that of the engine's Probe.
func Probe(ctx context.Context) (ask nftables.Ask, err error) {
	for _, x := range []nftables.Ask{{Events: true, Follow: Follow}, {Events: true}, {}} {
		for _, target := range []bool{false, true} {
			ask = nftables.Ask{First: First, Count: uint16(runtime.NumCPU()), Mask: Mask, Target: target,
				Events: x.Events, Follow: x.Follow}
			if err = (&nftables.Engine{Ask: ask}).Probe(ctx); err == nil {
				return ask, nil
			}
		}
	}
	return ask, err
}

// Server answers the kernel for the engines of both families. Set the fields before Start.
type Server struct {
	Balancer *lb.Balancer
	Ask      nftables.Ask
	Engines  [2]*nftables.Engine // IPv4, IPv6; with the same Ask
	Now      func() int64        // the clock of the Balancer

	// Chose gets why the Balancer has chosen the endpoint of a flow whose Service has flows logged, before the kernel
	// has the answer. It must not wait. nil: it is of no use.
	Chose func(protocol lb.Protocol, client, asked netip.AddrPort, why lb.Why)

	// Shares bound what one Service and one client have of the flows that are known, and of the packets that are held.
	Shares shares.Shares

	queues, held *nfqueue.Queues // held: of packets that stay, which the kernel looks through at each verdict
	following    following
	holding      holding
	unreachable  unreachable

	took func(packets int, d time.Duration) // gets how long verdicts take; nil: it is not measured

	chosen, unknown, no, limited, undecided, strays, repeated, unfollowed atomic.Uint64
}

// Stats count what a server was asked. It may be called by any goroutine.
type Stats struct {
	Queues    nfqueue.Stats
	Chosen    uint64
	None      uint64 // the Balancer had no endpoint, or does not admit the client
	Unknown   uint64 // the kernel does not have the endpoint that was chosen yet
	Undecided uint64 // held packets whose verdict was not taken
	Limited   uint64 // reset or dropped: the endpoints, the Service or the client have as many connections as they may
	Strays    uint64 // in the midst of connections that the kernel does not know: they went where new ones would
	Flows     FlowStats
	Holds     HoldStats
}

// HoldStats count packets that stay in the queue while there is no endpoint, or none that has room.
type HoldStats struct {
	Held    int64  // now
	All     uint64 // until now
	Full    uint64 // could not: as many of the Service did as it allows
	Lacks   Lacks  // could not for other reasons
	Expired uint64 // have gone on without an endpoint, or were refused since none had room for too long
	Left    uint64 // were dropped, since their client had left while none had room
}

// FlowStats count what is known of flows that the kernel forwards.
type FlowStats struct {
	Known      int64  // now
	Unfollowed uint64 // connections that have an endpoint and were not followed, since enough others were
	Lacks      Lacks  // had no room among these
	Answered   uint64
	Refused    uint64 // by a reset as the first answer, or left so by the client where packets are not counted
	Silent     uint64 // endpoints that have not answered in time
	Retried    uint64 // of both, those whose client gets another endpoint when it sends again
	Listening  bool   // to conntrack
	Events     uint64 // of it
	Lost       uint64 // events that had no room, after which the table is read
}

// Start begins to answer in the network namespace of the calling thread. While another process does, the
// error wraps syscall.EPERM. Rules that ask are to be written afterwards: a kernel may have events of those flows only
// that began while anyone listened.
func (s *Server) Start() (err error) {
	_ = s.unreachable.open() // without it clients of SCTP by IPv6 are not answered
	s.startHolding()
	if s.held, err = nfqueue.Open(s.Ask.First+s.Ask.Count, 1, s.decideHeld, nil); err != nil {
		s.endHolding()
		s.unreachable.close()
		return err // first, and so nothing is opened for conntrack each time that Await tries
	}
	s.following.shares = s.Shares
	if err := s.follow(); err != nil {
		s.following.cannot = err
	}
	if s.queues, err = nfqueue.Open(s.Ask.First, s.Ask.Count, s.decide, s.took); err != nil {
		s.endHolding()
		defer s.unreachable.close()
		return errors.Join(err, s.held.Close(), s.unfollow())
	}
	if s.following.cannot == nil {
		s.Read()
	}
	return nil
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	f, h := &s.following, &s.holding
	stats := Stats{
		Queues: s.queues.Stats(), Chosen: s.chosen.Load(), None: s.no.Load(), Unknown: s.unknown.Load(),
		Limited: s.limited.Load(), Undecided: s.undecided.Load(), Strays: s.strays.Load(),
		Flows: FlowStats{Known: f.known.Load(), Unfollowed: s.unfollowed.Load(), Lacks: f.full.load(),
			Answered: f.answered.Load(),
			Refused:  f.refused.Load(), Silent: f.silent.Load(), Retried: f.retried.Load()},
		Holds: HoldStats{Held: h.held.Load(), All: h.holds.Load(), Full: h.full.Load(), Expired: h.expired.Load(),
			Left: h.left.Load(), Lacks: h.lacks.load()},
	}
	held := s.held.Stats()
	stats.Queues.Missed += held.Missed
	stats.Queues.Late += held.Late
	stats.Queues.Repeated += s.repeated.Load()
	stats.Flows.Listening = f.hearing.on.Load()
	if f.cannot == nil {
		events := f.events.Stats()
		stats.Flows.Events, stats.Flows.Lost = events.Handled, events.Lost
	}
	return stats
}

// Close answers what has come, drops what is held, and ends. From then on the kernel chooses, and no flow is in flight.
func (s *Server) Close() error {
	s.endHolding()
	defer s.unreachable.close()
	return errors.Join(s.queues.Close(), s.held.Close(), s.unfollow())
}

// decide chooses for one flow. It allocates nothing.
func (s *Server) decide(p *nfqueue.Packet) nfqueue.Verdict { return s.judge(p, false) }

// decideHeld does so for one that may stay.
func (s *Server) decideHeld(p *nfqueue.Packet) nfqueue.Verdict { return s.judge(p, true) }

func (s *Server) judge(p *nfqueue.Packet, holds bool) nfqueue.Verdict {
	f := lb.Flow{
		Frontend: lb.Frontend{Protocol: netfilter.ProtocolOf(p.Protocol), Addr: p.Asked},
		Client:   p.Client.Addr(), ClientPort: p.Client.Port(), Now: s.Now(),
	}
	k := keyOf(f.Frontend.Protocol, p.Client, p.Asked)
	if s.waits(&k, f.Now) {
		return nfqueue.Verdict{Action: nfqueue.Drop}
	}
	v := nfqueue.Verdict{Action: nfqueue.Accept, Mark: p.Mark &^ s.Ask.Mask}
	if p.Stray {
		v.Mark |= s.stray(&k, &f)
		return v
	}
	one, known := s.following.find(&k)
	if known && one.repeats(f.Now) {
		s.repeated.Add(1)
		v.Mark |= s.engine(&f).Number(one.choice.Backend())
		return v
	}
	if known {
		one, known = s.following.take(&k)
	}
	var before netip.AddrPort
	if known && one.choice.Valid() { // it has ended, which was not heard yet, and its ports are used again
		before = one.choice.Backend()
		one.end(&k)
		one = flow{}
	}
	if one.failed != nil {
		f.Tried = &one.failed.tried
	}
	number, err := s.choose(&f, &one)
	switch {
	case one.exhausted():
		s.no.Add(1)
		v.Mark |= s.Ask.Mask // its client is refused
	case number != 0:
		one.again = k.isUDP() && one.choice.Backend() == before
		v.Mark |= number
		if !holds && s.passes(p, &k, &one, number) {
			s.chosen.Add(1)
			s.pass(&k, &one, number)
			return v
		}
		if s.keep(&k, &one) {
			s.chosen.Add(1)
			return v
		}
		s.limited.Add(1)
		v.Action, v.Mark = s.refusal(&k, p.Tag, lb.ErrServiceLimit, v.Mark&^s.Ask.Mask)
		return v
	case full(err) && holds:
		v.Action, v.Mark = s.pend(&k, &f, p, &one)
		return v
	case limits(err) && !full(err):
		s.limited.Add(1)
		v.Action, v.Mark = s.refusal(&k, p.Tag, err, v.Mark)
	case !holds && (full(err) || waits(err) && s.mayHold(&f)):
		if one.failed != nil {
			if kept, _ := s.following.put(&k, &one, firstLook); kept { // for when it comes from the other queue
				one = flow{}
			}
		}
		v = nfqueue.Verdict{Action: nfqueue.To(s.Ask.First + s.Ask.Count), Mark: p.Mark}
	case waits(err) && holds && s.hold(&k, &f, p, err == nil):
		v.Action = nfqueue.Hold
	case err == nil:
		s.unknown.Add(1)
	default:
		s.no.Add(1)
	}
	one.end(&k)
	return v
}

// exhausted reports whether a client that was refused has no other endpoint, or has had as many as may be.
func (one *flow) exhausted() bool {
	return one.failed != nil && one.failed.refused && one.choice.Valid() &&
		(one.failed.attempts >= mostAttempts(one.choice) || !one.failed.tried.Add(one.choice))
}

// stray returns the number of the endpoint of a packet in the midst of a connection that conntrack does not know: its
// entry has gone, or it took another node before. It goes where its flow did, as far as that is known, and else where a
// new one would, which may be the same endpoint by hash or affinity. It is not in flight, and what becomes of it says
// nothing of the endpoint: one that does not know it resets it.
func (s *Server) stray(k *flowKey, f *lb.Flow) (number uint32) {
	s.strays.Add(1)
	if one, known := s.following.find(k); known && one.choice.Valid() {
		return s.engine(f).Number(one.choice.Backend())
	} else if known && one.failed != nil {
		return s.engine(f).Number(one.failed.last)
	}
	if number = s.following.answering.of(k); number != 0 && !s.drained(f, number) {
		return number
	}
	choice, err := s.Balancer.Pick(*f)
	if err != nil {
		return 0
	}
	number = s.engine(f).Number(choice.Backend())
	choice.Done(nil)
	return number
}

// drained reports whether an operator has ended the connections to the endpoint of a number: of some their entry was
// deleted unheard.
func (s *Server) drained(f *lb.Flow, number uint32) bool {
	drains := s.Balancer.Drains()
	service, _, ok := s.Balancer.Table().Lookup(f.Frontend)
	if drains == nil || !ok {
		return false
	}
	i := slices.IndexFunc(service.Backends, func(b lb.Backend) bool { return s.engine(f).Number(b.Addr) == number })
	if i < 0 {
		return true
	}
	by, drained := drains.Of(service.ID, service.Backends[i].Addr)
	return drained && by.Deadline != 0 && by.Deadline <= f.Now
}

// engine returns that of the family of a flow.
func (s *Server) engine(f *lb.Flow) *nftables.Engine { return s.engineFor(f.Client) }

func (s *Server) engineFor(client netip.Addr) *nftables.Engine {
	return s.Engines[family(client)]
}

// family returns the place of one in arrays: that of IPv4, or of IPv6.
func family(client netip.Addr) int {
	if client.Is6() {
		return 1
	}
	return 0
}

// choose chooses an endpoint, of which it returns the number; 0: the kernel does not have it yet.
func (s *Server) choose(f *lb.Flow, to *flow) (number uint32, err error) {
	asked := *f // f may be kept, for which it must not say where why is
	asked.Why = &to.why
	if to.choice, err = s.Balancer.Pick(asked); err != nil {
		return 0, err
	}
	if err = s.admit(f, to); err != nil {
		return 0, err
	}
	to.since = f.Now
	return s.engine(f).Number(to.choice.Backend()), nil
}

// admit has a flow count for the limits of its Service, unless it does.
func (s *Server) admit(f *lb.Flow, to *flow) (err error) {
	if to.admission != (lb.Admission{}) {
		return nil
	}
	_, to.admission, err = s.Balancer.Admit(&f.Frontend, f.Client, f.Now)
	if err == nil && to.admission == (lb.Admission{}) {
		return lb.ErrNoService // it has gone since
	}
	return err
}

// waits reports whether there is no endpoint, or, without an error, the kernel does not have it yet.
func waits(err error) bool {
	return err == nil || err == lb.ErrNoBackend //nolint:errorlint // it is never wrapped
}

// full reports whether no endpoint has room.
func full(err error) bool { return err == lb.ErrFull } //nolint:errorlint // it is never wrapped

// limits reports whether an error says that there are as many connections as may be, or as many clients that wait.
func limits(err error) bool {
	switch err { //nolint:errorlint // they are never wrapped, and this is done for each flow
	case lb.ErrFull, lb.ErrQueueFull, lb.ErrServiceLimit, lb.ErrClientLimit, lb.ErrClientRate:
		return true
	}
	return false
}
