package queue

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
)

// Probe returns what engines are to be made with, a queue for each core, and checks that this host can forward so: with
// queues of nf_tables, or else by the target of iptables. marks are their Ask.Mask. The error is that of the engine's
// Probe.
func Probe(ctx context.Context, marks uint32) (ask nftables.Ask, err error) {
	for _, events := range []bool{true, false} {
		for _, target := range []bool{false, true} {
			ask = nftables.Ask{First: First, Count: uint16(runtime.NumCPU()), Mask: marks, Target: target,
				Events: events}
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

	// Shares bound what one Service and one client have of the flows that are known.
	Shares shares.Shares

	queues    *nfqueue.Queues
	following following

	took func(packets int, d time.Duration) // gets how long verdicts take; nil: it is not measured

	chosen, unknown, no, strays atomic.Uint64
}

// Stats count what a server was asked. It may be called by any goroutine.
type Stats struct {
	Queues  nfqueue.Stats
	Chosen  uint64
	None    uint64 // the Balancer had no endpoint, or does not admit the client
	Unknown uint64 // the kernel does not have the endpoint that was chosen yet
	Strays  uint64 // in the midst of connections that the kernel does not know: they went where new ones would
	Flows   FlowStats
}

// FlowStats count what is known of flows that the kernel forwards.
type FlowStats struct {
	Known    int64 // now
	Lacks    Lacks // had no room among these
	Answered uint64
	Refused  uint64 // by a reset as the first answer, or left so by the client where packets are not counted
	Silent   uint64 // endpoints that have not answered in time
	Retried  uint64 // of these, those whose client gets another endpoint when it sends again
	Events   uint64 // of it
	Lost     uint64 // events that had no room, after which the table is read
}

// Start begins to answer in the network namespace of the calling thread. While another process does, the
// error wraps syscall.EPERM. Rules that ask are to be written afterwards: a kernel may have events of those flows only
// that began while anyone listened.
func (s *Server) Start() (err error) {
	s.following.shares = s.Shares
	if err := s.follow(); err != nil {
		s.following.cannot = err
	}
	if s.queues, err = nfqueue.Open(s.Ask.First, s.Ask.Count, s.decide, s.took); err != nil {
		return errors.Join(err, s.unfollow())
	}
	if s.following.cannot == nil {
		s.Read()
	}
	return nil
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	f := &s.following
	stats := Stats{
		Queues: s.queues.Stats(), Chosen: s.chosen.Load(), None: s.no.Load(), Unknown: s.unknown.Load(),
		Strays: s.strays.Load(),
		Flows: FlowStats{Known: f.known.Load(), Lacks: f.full.load(), Answered: f.answered.Load(),
			Refused: f.refused.Load(), Silent: f.silent.Load(), Retried: f.retried.Load()},
	}
	if f.cannot == nil {
		events := f.events.Stats()
		stats.Flows.Events, stats.Flows.Lost = events.Handled, events.Lost
	}
	return stats
}

// Close answers what has come, and ends. From then on the kernel chooses, and no flow is in flight.
func (s *Server) Close() error { return errors.Join(s.queues.Close(), s.unfollow()) }

// decide chooses for one flow. It allocates nothing.
func (s *Server) decide(p *nfqueue.Packet) nfqueue.Verdict {
	f := lb.Flow{
		Frontend: lb.Frontend{Protocol: netfilter.ProtocolOf(p.Protocol), Addr: p.Asked},
		Client:   p.Client.Addr(), ClientPort: p.Client.Port(), Now: s.Now(), Forwarded: true,
	}
	k := keyOf(f.Frontend.Protocol, p.Client, p.Asked)
	v := nfqueue.Verdict{Action: nfqueue.Accept, Mark: p.Mark &^ s.Ask.Mask}
	if p.Stray {
		v.Mark |= s.stray(&k, &f)
		return v
	}
	one, known := s.following.take(&k)
	var before netip.AddrPort
	if known && one.state != retrying { // it has ended, which was not heard yet, and its ports are used again
		before = one.choice.Backend()
		one.end()
		one = flow{}
	}
	if one.failed != nil {
		f.Tried = &one.failed.tried
	}
	number, err := s.choose(&f, &one)
	if number != 0 {
		s.chosen.Add(1)
		v.Mark |= number
		if one.replaced = k.isUDP() && one.choice.Backend() == before; k.isUDP() && one.endsUnheard() {
			one.end()
		} else {
			s.keep(&k, &one)
		}
		return v
	}
	if err == nil {
		s.unknown.Add(1)
	} else {
		s.no.Add(1)
	}
	one.end()
	return v
}

// stray returns the number of the endpoint of a packet in the midst of a connection that conntrack does not know: its
// entry has gone, or it took another node before. It goes where its flow did while the flow is known, and else where a
// new one would, which may be the same endpoint by hash or affinity. It is not in flight, and says nothing of the
// endpoint: an endpoint that does not know the connection resets it.
func (s *Server) stray(k *flowKey, f *lb.Flow) (number uint32) {
	s.strays.Add(1)
	if one, known := s.following.find(k); known && one.state != retrying {
		return s.engine(f).Number(one.choice.Backend())
	} else if known {
		return s.engine(f).Number(one.failed.last)
	}
	choice, err := s.Balancer.Pick(*f)
	if err != nil {
		return 0
	}
	number = s.engine(f).Number(choice.Backend())
	choice.Done(nil)
	return number
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
	of := *f
	of.Why = &to.why
	if to.choice, err = s.Balancer.Pick(of); err != nil {
		return 0, err
	}
	to.state, to.since = asked, f.Now
	return s.engine(f).Number(to.choice.Backend()), nil
}
