package queue

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/flows/track"
	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
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

// Server answers the kernel for the engines of both families. Set the exported fields before Start, and those of the
// Tracker but Number.
type Server struct {
	track.Tracker
	Ask     nftables.Ask
	Engines [2]*nftables.Engine // IPv4, IPv6; with the same Ask

	queues *nfqueue.Queues

	took func(packets int, d time.Duration) // gets how long verdicts take; nil: it is not measured

	chosen, unknown, no, strays atomic.Uint64
}

// Stats count what a server was asked. Any goroutine may ask for them.
type Stats struct {
	Queues  nfqueue.Stats
	Chosen  uint64
	None    uint64 // the Balancer had no endpoint, or does not admit the client
	Unknown uint64 // the kernel does not have the endpoint that was chosen yet
	Strays  uint64 // in the midst of connections that the kernel does not know: they went where new ones would
	Flows   track.Stats
}

// Start begins to answer in the network namespace of the calling thread. While another process does, the error wraps
// syscall.EPERM. Rules that ask are to be written afterwards, as Tracker.Start says.
func (s *Server) Start() (err error) {
	s.Number = s.number
	s.Tracker.Start()
	if s.queues, err = nfqueue.Open(s.Ask.First, s.Ask.Count, s.decide, s.took); err != nil {
		return errors.Join(err, s.Tracker.Close())
	}
	s.RequestReading()
	return nil
}

// number returns that of an endpoint; 0: the kernel does not have it yet.
func (s *Server) number(endpoint netip.AddrPort) uint32 {
	family := 0
	if endpoint.Addr().Is6() {
		family = 1
	}
	return s.Engines[family].Number(endpoint)
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	return Stats{Queues: s.queues.Stats(), Chosen: s.chosen.Load(), None: s.no.Load(), Unknown: s.unknown.Load(),
		Strays: s.strays.Load(), Flows: s.Tracker.Stats()}
}

// Close answers what has come, and ends. After that the kernel chooses, and no flow is in flight.
func (s *Server) Close() error { return errors.Join(s.queues.Close(), s.Tracker.Close()) }

// decide chooses for one flow. It allocates nothing.
func (s *Server) decide(p *nfqueue.Packet) nfqueue.Verdict {
	f := lb.Flow{
		Frontend: lb.Frontend{Protocol: netfilter.ProtocolOf(p.Protocol), Addr: p.Asked},
		Client:   p.Client.Addr(), ClientPort: p.Client.Port(), Now: s.Now(), Forwarded: true,
	}
	v := nfqueue.Verdict{Action: nfqueue.Accept, Mark: p.Mark &^ s.Ask.Mask}
	if p.Stray {
		v.Mark |= s.stray(&f)
		return v
	}
	number, err := s.Choose(&f)
	switch {
	case err != nil:
		s.no.Add(1)
	case number == 0:
		s.unknown.Add(1)
	default:
		s.chosen.Add(1)
	}
	v.Mark |= number
	return v
}

// stray returns the number of the endpoint of a packet in the midst of a connection that conntrack does not know: its
// entry has gone, or it took another node before. It goes where its flow did while the flow is followed, and else where
// a new one would. It says nothing of the endpoint, which resets a connection that it does not know.
func (s *Server) stray(f *lb.Flow) (number uint32) {
	s.strays.Add(1)
	if at, ok := s.At(f); ok {
		return s.number(at)
	}
	choice, err := s.Balancer.Pick(*f)
	if err != nil {
		return 0
	}
	number = s.number(choice.Backend())
	choice.Done(nil)
	return number
}
