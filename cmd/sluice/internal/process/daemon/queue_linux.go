package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/events"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/metrics"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows/track"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/kernelmodes/queue"
	"github.com/sluice-lb/sluice/lb"
)

// handOverLasts is how long the process that hands over may still answer the kernel without that being worth a word.
const handOverLasts = 5 * time.Second

// queues is data path queue: who answers the kernel, from the first Service there on.
type queues struct {
	server   queue.Server
	log      *zap.Logger
	inherits func() bool // the Balancer knows the clients of the process before

	// unnumbered reports how many endpoints of a Service have no number, and 0 when all have.
	unnumbered func(of lb.Name, ipv6 bool, endpoints int)

	began     atomic.Bool // to answer, and it may have ended since
	answering atomic.Bool

	mu      sync.Mutex // guards the following
	begun   bool       // or it is waited for
	closed  bool
	waiting sync.WaitGroup     // for the process that answers
	giveUp  context.CancelFunc // that; nil: nothing is waited for
}

func (d *daemon) newQueues() *queues {
	return &queues{log: d.Log, inherits: func() bool { return d.lineage.taken }, unnumbered: d.reports.unnumbered,
		server: queue.Server{Tracker: track.Tracker{Now: eventloop.Now, Balancer: d.data.lb, Watch: &d.watch,
			Shares: sharesOf(&d.Config.DataPath), Chose: d.kernel.Chose}}}
}

// queueEngine gives a family the engine for data path queue.
func (s *steering) queueEngine(ctx context.Context, f *agent.Family, t *steeredFamily) {
	err := s.queues.probe(ctx, s.config.Kernel.MarkMask)
	e := &nftables.Engine{IPv6: t.ipv6, Ask: s.queues.server.Ask, Lifetime: s.config.Kernel.RulesLifetime}
	e.Ask.Share, e.Ask.Defaults = sharesOf(&s.config.DataPath).Service, s.config.DataPath.Policies
	rules := &s.config.Document.NFTables
	e.Masquerade = s.masquerade(*rules.MasqueradeBit, rules.MasqueradeAll)
	if err == nil {
		err = e.Probe(ctx)
	}
	if err != nil {
		if f.No[agent.Queue] = err; s.mode == agent.Queue {
			s.fallback("queue", t.ipv6, err)
		}
		return
	}
	f.Engines[agent.Queue] = &queueEngine{Engine: e, queues: s.queues}
	s.queues.server.Engines[familyOf(t.ipv6)] = e
	t.queue.Store(e)
	s.leases = append(s.leases, e)
}

func familyOf(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}

// probe finds out once how the kernel can ask.
func (q *queues) probe(ctx context.Context, marks uint32) (err error) {
	if q.server.Ask.Count == 0 {
		q.server.Ask, err = queue.Probe(ctx, marks)
	}
	return err
}

// unnumbered reports that endpoints of a Service have no number on data path queue, and when that is over.
func (r *reports) unnumbered(of lb.Name, ipv6 bool, endpoints int) {
	subject := fmt.Sprintf("numbers of %s/%s %t", of.Namespace, of.Name, ipv6)
	if endpoints > 0 {
		r.begins(subject, events.EndpointsUnnumbered(of, r.node, ipv6, endpoints))
		return
	}
	r.ends(subject, events.EndpointsNumbered(of, r.node, ipv6))
}

// stats may be called by any goroutine.
func (q *queues) stats() (m metrics.Queue) {
	if !q.began.Load() {
		return m
	}
	s := q.server.Stats()
	return metrics.Queue{Answering: q.answering.Load(), Chosen: s.Chosen, None: s.None, Unknown: s.Unknown,
		Strays: s.Strays, Missed: s.Queues.Missed, Uncounted: metrics.Lacks(s.Flows.Rejected)}
}

// begin answers from now on, or as soon as the process that hands over does no more.
func (q *queues) begin() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.begun || q.closed {
		return nil
	}
	err := q.server.Start()
	switch {
	case errors.Is(err, syscall.EPERM):
		var ctx context.Context
		ctx, q.giveUp = context.WithCancel(context.Background())
		q.waiting.Go(func() { q.await(ctx) })
	case err != nil:
		return err
	default:
		q.answers()
	}
	q.begun = true
	return nil
}

func (q *queues) answers() {
	q.began.Store(true)
	q.answering.Store(true)
	if err := q.server.Cannot(); err != nil {
		q.log.Warn("data path queue cannot follow flows: no retries, ejections, least connections",
			zap.Error(err))
	}
}

// await begins when no other process answers any more. Meanwhile that one chooses.
func (q *queues) await(ctx context.Context) {
	soon, cancel := context.WithTimeout(ctx, handOverLasts)
	err := q.server.Await(soon)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) {
		q.log.Warn("another program has the queues of data path queue and chooses endpoints",
			zap.Uint16("first", q.server.Ask.First), zap.Uint16("count", q.server.Ask.Count))
		err = q.server.Await(ctx)
	}
	switch {
	case err == nil:
		q.answers()
		q.log.Info("data path queue: this process chooses endpoints")
	case ctx.Err() == nil:
		q.log.Error("data path queue: the kernel chooses endpoints", zap.Error(err))
	}
}

// close leaves the choice to the kernel. It may be called more than once.
func (q *queues) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	if q.giveUp != nil {
		q.giveUp()
		q.waiting.Wait()
	}
	if !q.answering.Swap(false) {
		return
	}
	if err := q.server.Close(); err != nil {
		q.log.Warn("flows whose first packet was in a queue may have lost it", zap.Error(err))
	}
}

// queueEngine has the kernel ask this process.
type queueEngine struct {
	*nftables.Engine
	queues *queues
	begun  bool
	lacks  map[lb.Name]int // Engine.Unnumbered, as it was reported
}

// Sync is that of the engine. Who answers is there before the rules that ask.
func (e *queueEngine) Sync(ctx context.Context, d lb.Delta, node lb.Node) error {
	if len(d.Added)+len(d.Changed) > 0 {
		if !e.begun && !e.queues.inherits() {
			e.recall(ctx, d.Added)
		}
		e.begun = true
		if err := e.queues.begin(); err != nil {
			return fmt.Errorf("answer the kernel: %w", err)
		}
	}
	err := e.Engine.Sync(ctx, d, node)
	e.queues.server.Changed(&d, e.IPv6)
	e.report()
	return err
}

// report says of which Services the kernel chooses some endpoints since they have no number, and when that is over.
func (e *queueEngine) report() {
	was := e.lacks
	e.lacks = e.Unnumbered()
	for of, n := range e.lacks {
		if was[of] == 0 {
			e.queues.log.Warn("data path queue: endpoints without a number, the kernel chooses",
				zap.String("service", of.Namespace+"/"+of.Name), zap.Bool("ipv6", e.IPv6), zap.Int("endpoints", n))
			e.queues.unnumbered(of, e.IPv6, n)
		}
	}
	for of := range was {
		if e.lacks[of] == 0 {
			e.queues.unnumbered(of, e.IPv6, 0)
		}
	}
}

// recall has clients with affinity stay where the kernel has sent them since an earlier process ended.
func (e *queueEngine) recall(ctx context.Context, services []*lb.Service) {
	b := e.queues.server.Balancer
	for _, s := range services {
		if s.AffinityTimeout == 0 {
			continue
		}
		clients, err := e.Engine.Clients(ctx, s, e.queues.server.Now())
		if err != nil {
			e.queues.log.Warn("clients with affinity may get other endpoints", zap.Stringer("service", s.ID),
				zap.Error(err))
			return
		}
		b.Memory().RememberClients(s.ID, clients)
	}
}

// Clients returns none: the Balancer has chosen for them.
func (*queueEngine) Clients(context.Context, *lb.Service, int64) ([]lb.Client, error) {
	return nil, nil
}
