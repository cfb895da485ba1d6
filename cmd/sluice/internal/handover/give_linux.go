package handover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
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
	flowsPerMessage = maxFDs / 2 // about 200 bytes each
	offerRounds     = 3          // each shows what came during the one before
)

func (s *State) patience() time.Duration { return cmp.Or(s.Patience, 20*time.Second) }

func (s *State) freeze() time.Duration { return cmp.Or(s.Freeze, 5*time.Second) }

// giver is one attempt to give.
type giver struct {
	*State
	listeners *Listeners
	ch        *Channel
	token     token
	memory    map[lb.ID]string // as it was sent first
	since     int64            // when affinity was sent first
	report    Report
	offered   int
}

// Give gives everything to the process at the other end, which has sent h. If the error
// is nil that has it all, and this process must end at once without touching any of it.
// Otherwise nothing has changed here: all connections go on.
func Give(ctx context.Context, ch *Channel, h Hello, s *State, l *Listeners) (Report, error) {
	start := time.Now()
	g := &giver{State: s, ch: ch, listeners: l, token: token{-1}, report: Report{Peer: h.peer, From: s.Program}}
	defer func() { g.token.close() }()
	if err := h.check(); err != nil {
		ch.refuse(err)
		return Report{}, err
	}
	wait, cancel := context.WithTimeout(ctx, g.patience())
	unpause, err := g.Agent.Pause(wait)
	cancel()
	if err != nil {
		err = fmt.Errorf("wait for a change that is being applied: %w", err)
		ch.refuse(err)
		return Report{}, err
	}
	if err = g.give(ctx); err == nil || g.theirs() {
		g.report.Took = time.Since(start)
		return g.report, nil
	}
	ch.refuse(err)
	g.TCP.Thaw()
	if g.report.halted != nil {
		g.report.halted()
	}
	g.listeners.resume()
	unpause()
	return Report{}, err
}

// theirs decides after an error which side has everything, and reports whether it is the
// other one.
func (g *giver) theirs() bool { return g.token.fd >= 0 && !g.token.take() }

func (g *giver) give(ctx context.Context) error {
	if err := g.prepare(ctx); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, g.patience())
	defer cancel()
	if err := g.ch.send(wait, preparedMsg, nil); err != nil {
		return err
	}
	if _, err := g.ch.expect(wait, readyMsg); err != nil {
		return fmt.Errorf("wait until the successor is ready: %w", err)
	}
	still, cancel := context.WithTimeout(ctx, g.freeze())
	defer cancel()
	since := monotonic()
	g.listeners.pause()
	resume, err := g.Loops.Halt()
	if err != nil {
		return fmt.Errorf("halt the loops: %w", err)
	}
	g.report.halted = resume
	if err := g.giveFrozen(still, since); err != nil {
		return err
	}
	if _, err := g.ch.expect(still, committedMsg); err != nil {
		return fmt.Errorf("wait until the successor has taken over: %w", err)
	}
	g.report.Frozen = time.Duration(monotonic() - since)
	return nil
}

// prepare sends all that can be sent while everything goes on.
func (g *giver) prepare(ctx context.Context) (err error) {
	if g.token, err = newToken(); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, g.patience())
	defer cancel()
	s, fds := g.setup()
	all := g.counters()
	if err := g.ch.sendJSON(wait, welcomeMsg, welcome{Program: g.Program, PID: os.Getpid(),
		Files: len(fds) + 2*int(all.TCP.Active+all.SCTP.Active) + int(all.UDP.Active)}, g.token.fd); err != nil {
		return err
	}
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the table: %w", err)
	}
	if err := g.ch.sendPart(wait, setupPart, b); err != nil {
		return err
	}
	for len(fds) > 0 {
		n := min(len(fds), maxFDs)
		if err := g.ch.send(wait, socketsMsg, nil, fds[:n]...); err != nil {
			return err
		}
		fds = fds[n:]
	}
	g.since = eventloop.Now() - int64(time.Second) // loops look at the clock at different moments
	if err := g.sendClients(wait, 0); err != nil {
		return err
	}
	if err := g.sendMemory(wait); err != nil {
		return err
	}
	for range offerRounds {
		n := 0
		for i := range g.TCP.Shards() {
			offered, err := g.offer(wait, i)
			if err != nil {
				return err
			}
			n += offered
		}
		if n < connsPerMessage {
			break
		}
	}
	return nil
}

// setup returns what is listened on, and its file descriptors.
func (g *giver) setup() (s setup, fds []int) {
	s.Seed, s.Agent = g.LB.Seed, g.Agent.State()
	for _, l := range g.TCP.Listening() {
		fds = append(fds, l.FDs...)
		s.TCP = append(s.TCP, tcpSockets{tcp.Listening{Addr: l.Addr, Steered: l.Steered}, len(l.FDs)})
	}
	for _, l := range g.UDP.Listening() {
		fds = append(fds, l.FDs...)
		s.UDP = append(s.UDP, udpSockets{udp.Listening{Frontend: l.Frontend}, len(l.FDs)})
	}
	s.SCTP = g.SCTP.Holding()
	s.SCTP.FDs(func(fd *int) { fds = append(fds, *fd) })
	var http []int
	s.HTTP, http = g.listeners.list()
	return s, append(fds, http...)
}

// offer shows the connections of a loop that were not shown yet.
func (g *giver) offer(ctx context.Context, loop int) (total int, err error) {
	var w writer
	for {
		n, err := g.TCP.Offer(loop, connsPerMessage, func(batch []tcp.Frozen) error {
			w.b = w.b[:0]
			fds := make([]int, 0, maxFDs)
			for i := range batch {
				if appendConn(&w, &batch[i], true); len(w.b) > maxMessage {
					return fmt.Errorf("offer %d connections: names too long", len(batch))
				}
				fds = append(fds, batch[i].Client, batch[i].Backend)
			}
			return g.ch.try(offersMsg, w.b, fds...)
		})
		if err == errFull {
			if err := g.ch.wait(ctx, unix.POLLOUT); err != nil {
				return total, err
			}
			continue
		}
		if err != nil {
			return total, err
		}
		g.offered += n
		if total += n; n < connsPerMessage {
			return total, nil
		}
	}
}

// sendClients sends the affinity of clients that came since a time.
func (g *giver) sendClients(ctx context.Context, from int64) error {
	var w writer
	now := eventloop.Now()
	g.LB.Clients(from, func(id lb.ID, clients []lb.Client) { appendClients(&w, id, clients, now) })
	return g.ch.sendPart(ctx, clientsPart, w.b)
}

// sendMemory sends the round robin positions and counts that differ from what was sent before.
func (g *giver) sendMemory(ctx context.Context) error {
	if g.memory == nil {
		g.memory = make(map[lb.ID]string)
	}
	var all, one writer
	for _, m := range g.LB.Memories() {
		one.b = one.b[:0]
		if appendMemory(&one, &m); g.memory[m.ID] != string(one.b) {
			g.memory[m.ID] = string(one.b)
			all.b = append(all.b, one.b...)
		}
	}
	return g.ch.sendPart(ctx, memoryPart, all.b)
}

// giveFrozen sends the state of everything, while the loops are halted.
func (g *giver) giveFrozen(ctx context.Context, since int64) error {
	if err := g.ch.sendJSON(ctx, frozenMsg, frozen{Since: since}); err != nil {
		return err
	}
	if err := g.sendConns(ctx); err != nil {
		return err
	}
	if err := g.sendFlows(ctx); err != nil {
		return err
	}
	if err := g.sendAssocs(ctx); err != nil {
		return err
	}
	if err := g.sendClients(ctx, g.since); err != nil {
		return err
	}
	if err := g.sendMemory(ctx); err != nil {
		return err
	}
	b, err := json.Marshal(g.counters())
	if err != nil {
		return fmt.Errorf("encode counters: %w", err)
	}
	if err := g.ch.sendPart(ctx, countersPart, b); err != nil {
		return err
	}
	return g.ch.send(ctx, commitMsg, nil)
}

func (g *giver) counters() counters {
	return counters{TCP: g.TCP.Stats(), UDP: g.UDP.Stats(), SCTP: g.SCTP.Stats()}
}

func (g *giver) sendConns(ctx context.Context) error {
	var w, waiting writer
	fds := make([]int, 0, maxFDs)
	flush := func() error {
		if len(w.b) == 0 {
			return nil
		}
		err := g.ch.send(ctx, connsMsg, w.b, fds...)
		for b := waiting.b; err == nil && len(b) > 0; {
			n := min(len(b), maxMessage)
			err = g.ch.send(ctx, bytesMsg, b[:n])
			b = b[n:]
		}
		w.b, waiting.b, fds = w.b[:0], waiting.b[:0], fds[:0]
		return err
	}
	err := g.TCP.Freeze(func(f *tcp.Frozen) error {
		g.report.Conns++
		before := len(w.b)
		appendConn(&w, f, f.Offer == 0)
		if f.Offer == 0 {
			fds = append(fds, f.Client)
			if f.Backend >= 0 {
				fds = append(fds, f.Backend)
			}
		} else {
			g.report.Copied++
		}
		waiting.b = append(append(waiting.b, f.ToBackend.Waiting...), f.ToClient.Waiting...)
		if size := len(w.b) - before; len(w.b)+2*size > maxMessage*3/4 || len(fds) > maxFDs-2 || len(waiting.b) > 0 {
			return flush()
		}
		return nil
	})
	return errors.Join(err, flush())
}

func (g *giver) sendFlows(ctx context.Context) error {
	var w writer
	var fds []int
	flush := func() error {
		if len(fds) == 0 {
			return nil
		}
		err := g.ch.send(ctx, flowsMsg, w.b, fds...)
		w.b, fds = w.b[:0], fds[:0]
		return err
	}
	err := g.UDP.Freeze(func(f *udp.Frozen) error {
		g.report.Flows++
		appendFlow(&w, f)
		if fds = append(fds, f.FD); len(fds) == flowsPerMessage || len(w.b) > maxMessage*3/4 {
			return flush()
		}
		return nil
	})
	return errors.Join(err, flush())
}
