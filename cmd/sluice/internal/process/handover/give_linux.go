package handover

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/tcp"
)

// Report says what has crossed.
type Report struct {
	Peer   int    // process on the other side; 0 if it cannot be seen from here
	From   string // version of the program that gave
	Conns  int    // TCP connections
	Copied int    // of them, those whose file descriptors crossed before the pause
	Flows  int    // UDP flows
	Assocs int    // SCTP associations, including those that have just ended
	Took   time.Duration
	Frozen time.Duration // that the last connection was paused

	halted func() // makes the loops of the process that gave go on; for tests
}

const (
	connsPerMessage = maxFDs / 2
	offerRounds     = 3 // each shows what came during the one before
)

// giver is one attempt to give.
type giver struct {
	*State
	listeners *Listeners
	ch        *Channel
	token     token
	memory    map[lb.ID]string // as it was sent first
	overShare []overShare
	event     uint64         // the last that has been sent
	ended     []report.Ended // that has been sent
	since     int64          // clients that came before have been sent
	report    Report
}

// Give gives everything to the process at the other end, which has sent h. If the error
// is nil that has it all, and this process must end at once without touching any of it.
// Otherwise nothing has changed here: all connections go on.
func Give(ctx context.Context, ch *Channel, h Hello, s *State, l *Listeners) (Report, error) {
	start := time.Now()
	g := &giver{State: s, ch: ch, listeners: l, token: token{-1}, memory: make(map[lb.ID]string),
		since: math.MinInt64, report: Report{Peer: h.PID, From: s.Program}}
	defer func() { g.token.close() }()
	if err := h.check(); err != nil {
		ch.refuse(err)
		return Report{}, err
	}
	patience := cmp.Or(s.Patience, 20*time.Second)
	wait, cancel := context.WithTimeout(ctx, patience)
	unpause, err := g.Agent.Pause(wait)
	cancel()
	if err != nil {
		err = fmt.Errorf("wait for a change that is being applied: %w", err)
		ch.refuse(err)
		return Report{}, err
	}
	// After an error the token decides which side has everything.
	if err = g.give(ctx, patience); err == nil || g.token.fd >= 0 && !g.token.take() {
		g.report.Took = time.Since(start)
		return g.report, nil
	}
	ch.refuse(err)
	g.TCP.Thaw()
	if g.report.halted != nil {
		g.report.halted()
	}
	g.listeners.Resume()
	g.Journal.Resume()
	g.Kernel.Resume()
	unpause()
	return Report{}, err
}

// inTurn runs steps until one fails.
func inTurn(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (g *giver) give(ctx context.Context, patience time.Duration) error {
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// What can be sent while everything goes on.
	if err := inTurn(wait, g.sendSetup, g.sendClients, g.sendMemory, g.sendTimes, g.sendWhys,
		g.sendOffers); err != nil {
		return err
	}
	wait, cancel = context.WithTimeout(ctx, patience)
	defer cancel()
	if err := g.ch.send(wait, preparedMsg, nil); err != nil {
		return err
	}
	if _, err := g.ch.expect(wait, readyMsg); err != nil {
		return fmt.Errorf("wait until the successor is ready: %w", err)
	}
	still, cancel := context.WithTimeout(ctx, cmp.Or(g.Freeze, 5*time.Second))
	defer cancel()
	since := monotonic()
	g.listeners.Pause()
	resume, err := g.Loops.Halt()
	if err != nil {
		return fmt.Errorf("halt the loops: %w", err)
	}
	g.report.halted = resume
	if err := g.ch.sendJSON(still, frozenMsg, since); err != nil {
		return err
	}
	if err := inTurn(still, g.sendConns, g.sendFlows, g.sendAssocs, g.sendClients, g.sendMemory,
		g.sendTimes, g.sendWhys); err != nil {
		return err
	}
	all := g.counters()
	all.OverShare, all.Events, all.Ended = g.overShare, g.Journal.Halt(g.event), g.Kernel.Halt(g.ended)
	if err := g.ch.sendJSON(still, countersMsg, all); err != nil {
		return err
	}
	if err := g.ch.send(still, commitMsg, nil); err != nil {
		return err
	}
	if _, err := g.ch.expect(still, committedMsg); err != nil {
		return fmt.Errorf("wait until the successor has taken over: %w", err)
	}
	g.report.Frozen = time.Duration(monotonic() - since)
	return nil
}

func (g *giver) counters() counters {
	return counters{TCP: g.TCP.Stats(), UDP: g.UDP.Stats(), SCTP: g.SCTP.Stats()}
}

// sendSetup sends the token, and what is listened on.
func (g *giver) sendSetup(ctx context.Context) (err error) {
	if g.token, err = newToken(); err != nil {
		return err
	}
	all := g.counters()
	s := setup{Program: g.Program, PID: os.Getpid(),
		Files: 2*int(all.TCP.Active+all.SCTP.Active) + int(all.UDP.Active),
		Seed:  g.LB.Seed, Agent: g.Agent.State(),
		TCP: g.TCP.Listening(), UDP: g.UDP.Listening(), SCTP: g.SCTP.Holding(), HTTP: g.listeners.list(),
		Events: g.Journal.After(0, journal.Size), Ended: g.Kernel.Ended()}
	if g.Manifests != nil {
		s.Manifests = g.Manifests()
	}
	g.ended = s.Ended
	if n := len(s.Events); n > 0 {
		g.event = s.Events[n-1].Number
	}
	fds := []int{g.token.fd}
	s.eachFD(func(fd *int) { fds = append(fds, *fd) })
	return g.ch.sendJSON(ctx, setupMsg, s, fds...)
}

// sendOffers shows the connections of all loops, and those that have come meanwhile.
func (g *giver) sendOffers(ctx context.Context) error {
	for range offerRounds {
		total := 0
		for i := range g.TCP.Shards() {
			n, err := g.offer(ctx, i)
			if err != nil {
				return err
			}
			total += n
		}
		if total < connsPerMessage {
			break
		}
	}
	return nil
}

// offer shows the connections of a loop that were not shown yet.
func (g *giver) offer(ctx context.Context, loop int) (total int, err error) {
	for {
		n, err := g.TCP.Offer(loop, connsPerMessage, func(batch []tcp.Frozen) error {
			var c codec
			for i := range batch {
				if c.record(func() { c.offer(&batch[i]) }); len(c.b) > maxPiece {
					return fmt.Errorf("offer %d connections: names too long", len(batch))
				}
			}
			return g.ch.try(offersMsg, c.b, c.fds...)
		})
		if err == errFull {
			if err := g.ch.wait(ctx, unix.POLLOUT); err != nil {
				return total, err
			}
			continue
		}
		if total += n; err != nil || n < connsPerMessage {
			return total, err
		}
	}
}

// sendClients sends the affinity and the conversations of clients that came since they were sent before, and what
// clients have used of their rates.
func (g *giver) sendClients(ctx context.Context) error {
	var c codec
	now, from := eventloop.Now(), g.since
	g.since = now - int64(time.Second) // loops look at the clock at different moments
	g.LB.Memory().Clients(from, func(id lb.ID, clients []lb.Client) {
		c.record(func() { c.affinity(&affinity{id, clients}) })
	})
	if err := g.ch.send(ctx, clientsMsg, c.b); err != nil {
		return err
	}
	c.b = c.b[:0]
	g.LB.Memory().Conversations(from, func(id lb.ID, all []balancer.Conversation) {
		c.record(func() { c.conversations(&conversations{id, all}) })
	})
	if err := g.ch.send(ctx, conversationsMsg, c.b); err != nil {
		return err
	}
	c.b = c.b[:0]
	g.LB.Memory().ClientRates(now, func(id lb.ID, all []balancer.ClientRate) {
		c.record(func() { c.rates(&rates{id, all}) })
	})
	return g.ch.send(ctx, ratesMsg, c.b)
}

// sendMemory sends the round robin positions and counts that differ from what was sent before.
func (g *giver) sendMemory(ctx context.Context) error {
	var all codec
	g.overShare = g.overShare[:0]
	for _, m := range g.LB.Counters().All() {
		if m.OverShare > 0 {
			g.overShare = append(g.overShare, overShare{m.ID, m.OverShare})
		}
		before := len(all.b)
		all.record(func() { all.memory(&m) })
		if one := all.b[before:]; g.memory[m.ID] == string(one) {
			all.b = all.b[:before]
		} else {
			g.memory[m.ID] = string(one)
		}
	}
	return g.ch.send(ctx, memoryMsg, all.b)
}

// sendTimes sends the histograms of services.
func (g *giver) sendTimes(ctx context.Context) error {
	var all codec
	g.LB.Counters().Times(func(id lb.ID, of *balancer.Times) { all.record(func() { all.times(&times{id, of}) }) })
	return g.ch.send(ctx, timesMsg, all.b)
}

// sendWhys sends why flows that the kernel forwards have their endpoints, as far as that was not sent before.
func (g *giver) sendWhys(ctx context.Context) error {
	var all codec
	for _, one := range g.Kernel.Whys() {
		all.record(func() { all.chosen(&one) })
	}
	return g.ch.send(ctx, whysMsg, all.b)
}

func (g *giver) sendConns(ctx context.Context) error {
	return sendFrozen(ctx, g.ch, connsMsg, &g.report.Conns, g.TCP.Freeze, func(c *codec, f *tcp.Frozen) {
		if f.Offer != 0 {
			g.report.Copied++
		}
		c.conn(f)
	})
}

func (g *giver) sendFlows(ctx context.Context) error {
	return sendFrozen(ctx, g.ch, flowsMsg, &g.report.Flows, g.UDP.Freeze, (*codec).flow)
}

func (g *giver) sendAssocs(ctx context.Context) error {
	return sendFrozen(ctx, g.ch, assocsMsg, &g.report.Assocs, g.SCTP.Freeze, (*codec).assoc)
}

// sendFrozen sends all that freeze passes on, as encode writes it, in batches, and counts it.
func sendFrozen[T any](ctx context.Context, ch *Channel, k kind, count *int, freeze func(func(*T) error) error,
	encode func(*codec, *T)) error {
	var c codec
	flush := func() error {
		if len(c.b) == 0 {
			return nil
		}
		err := cmp.Or(c.err, ch.send(ctx, k, c.b, c.fds...))
		c.b, c.fds = c.b[:0], c.fds[:0]
		return err
	}
	if err := freeze(func(f *T) error {
		*count++
		if c.record(func() { encode(&c, f) }); len(c.b) > maxPiece*3/4 || len(c.fds) > maxFDs-2 {
			return flush()
		}
		return nil
	}); err != nil {
		return err
	}
	return flush()
}
