package queue

import (
	"context"
	"net/netip"
	"runtime"
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
)

// Defaults of an engine's Ask. The bits are neither kube-proxy's (bit 14, which is Masquerade's too) nor below it.
const (
	First = 29500
	Mask  = 0xffff0000
)

// Probe returns what engines are to be made with, a queue for each core, and checks that this host can forward so: with
// queues of nf_tables, or else by the target of iptables. The error is that of the engine's Probe.
func Probe(ctx context.Context) (ask nftables.Ask, err error) {
	for _, target := range []bool{false, true} {
		ask = nftables.Ask{First: First, Count: uint16(runtime.NumCPU()), Mask: Mask, Target: target}
		if err = (&nftables.Engine{Ask: ask}).Probe(ctx); err == nil {
			break
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

	queues              *nfqueue.Queues
	chosen, unknown, no atomic.Uint64
}

// Stats count what a server was asked. It may be called by any goroutine.
type Stats struct {
	Queues  nfqueue.Stats
	Chosen  uint64
	None    uint64 // the Balancer had no endpoint, or does not admit the client
	Unknown uint64 // the kernel does not have the endpoint that was chosen yet
}

// Start begins to answer in the network namespace of the calling thread. While another process does, the
// error wraps syscall.EPERM.
func (s *Server) Start() (err error) {
	s.queues, err = nfqueue.Open(s.Ask.First, s.Ask.Count, s.decide)
	return err
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	return Stats{s.queues.Stats(), s.chosen.Load(), s.no.Load(), s.unknown.Load()}
}

// Close answers what has come, and ends. From then on the kernel chooses.
func (s *Server) Close() error { return s.queues.Close() }

// decide chooses for one flow. It allocates nothing.
func (s *Server) decide(p *nfqueue.Packet) uint32 {
	ipv6 := p.Asked.Addr().Is6()
	f := lb.Flow{
		Frontend: lb.Frontend{Protocol: netfilter.ProtocolOf(p.Protocol), Addr: p.Asked},
		Client:   p.Client.Addr(), ClientPort: p.Client.Port(), Now: s.Now(),
	}
	choice, err := s.Balancer.Pick(f)
	if err == lb.ErrNoService { //nolint:errorlint // it is never wrapped, and this is done for each flow
		f.Frontend.Addr = netip.AddrPortFrom(netfilter.Unspecified(ipv6), p.Asked.Port())
		choice, err = s.Balancer.Pick(f)
	}
	mark := p.Mark &^ s.Ask.Mask
	if err != nil {
		s.no.Add(1)
		return mark
	}
	defer choice.Done(nil)
	engine := s.Engines[0]
	if ipv6 {
		engine = s.Engines[1]
	}
	number := engine.Number(choice.Backend())
	if number == 0 {
		s.unknown.Add(1)
		return mark
	}
	s.chosen.Add(1)
	return mark | number
}
