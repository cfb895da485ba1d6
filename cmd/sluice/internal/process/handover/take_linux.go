package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// ErrGone means that the process that was to give has ended before it gave anything,
// so that there is none to take over from.
var ErrGone = errors.New("the running process has ended")

// endedGrace is how long we wait for a sign of life of a process that seems to have
// been killed.
const endedGrace = 200 * time.Millisecond

// taker is one attempt to take over.
type taker struct {
	ch     *Channel
	token  token
	setup  setup
	offers map[uint32]tcp.Frozen // connections that have not stopped yet
	conns  []tcp.Frozen
	flows  []udp.Frozen
	whys   []report.Chosen
	assocs []sctp.Frozen
	counts counters
	since  int64 // when the pause started; 0 before
	fds    []int // that have come, but for the token and those of Listeners
}

// Take takes everything over from the process at the other end. After nil it is e's, and in
// motion; what could not be had of it is in problems. After an error the running process has
// it all still, or has ended (ErrGone) before anything was given. taken is called when everything
// is ours, before the other process hears so, and may end. frozen is passed the pause
// of each connection and flow. It is called by many goroutines at once.
func Take(ctx context.Context, ch *Channel, e *State, l *Listeners, taken func(),
	frozen func(time.Duration)) (report Report, problems, err error) {
	start := time.Now()
	t := &taker{ch: ch, token: token{-1}, offers: make(map[uint32]tcp.Frozen)}
	err = t.take(ctx, e, l)
	ended := errors.Is(err, ErrEnded)
	if ended {
		err = nil
		// It was killed, and what it was giving no process has now. Should it be alive after
		// all, it is the one that goes on.
		grace, cancel := context.WithTimeout(ctx, endedGrace)
		<-grace.Done()
		cancel()
	}
	if err == nil && !t.token.take() {
		err = errors.New("the running process has taken everything back")
		if ended {
			err = ErrGone
		}
	}
	if err != nil {
		t.giveUp(err)
		return Report{}, nil, fmt.Errorf("take over from the running process: %w", err)
	}
	taken()
	_ = ch.try(committedMsg, nil) // the other side would find the token gone anyway
	report, problems = t.adopt(e, l, frozen)
	if ended {
		problems = errors.Join(problems, fmt.Errorf("the running process ended before it had given everything: %d "+
			"connections were reset", len(t.offers)))
		for _, fd := range ch.cut {
			socket.Reset(fd)
		}
	}
	for _, c := range t.offers { // they have ended since, unless it was killed
		if ended {
			socket.Reset(c.Client)
			socket.Reset(c.Backend)
		}
		closeAll([]int{c.Client, c.Backend})
	}
	t.token.close()
	ch.Close()
	report.Took = time.Since(start)
	return report, problems, nil
}

// giveUp reports to the other side why, and closes all that has come.
func (t *taker) giveUp(err error) {
	t.ch.refuse(err)
	closeAll(t.fds)
	t.token.close()
	t.ch.Close()
}

// take receives until everything is here.
func (t *taker) take(ctx context.Context, e *State, l *Listeners) error {
	if err := t.begin(ctx, e.Program); err != nil {
		return err
	}
	if e.Loses != nil {
		if err := e.Loses(t.setup.Manifests); err != nil {
			return err
		}
	}
	e.LB.Seed = t.setup.Seed
	if err := e.SCTP.CanAdopt(&t.setup.SCTP); err != nil {
		return err
	}
	if err := e.Agent.Adopt(t.setup.Agent); err != nil {
		return err
	}
	t.fds = t.fds[:len(t.fds)-len(t.setup.HTTP)] // the last of setup's
	if err := l.offer(t.setup.HTTP); err != nil {
		return err
	}
	for {
		m, err := t.ch.receive(ctx)
		switch {
		case err != nil:
			return err
		case m.kind == commitMsg:
			return nil
		case m.kind == preparedMsg:
			err = t.ch.send(ctx, readyMsg, nil)
		default:
			err = t.message(m, e.LB)
		}
		if err != nil {
			return err
		}
	}
}

// begin asks for everything, up to what is known before the first connection crosses.
func (t *taker) begin(ctx context.Context, program string) error {
	ns, err := networkNamespace()
	if err != nil {
		return err
	}
	hello := Hello{Version: version, Program: program, PID: os.Getpid(), NetNS: ns}
	if err := t.ch.sendJSON(ctx, helloMsg, hello); err != nil {
		return err
	}
	fds, err := t.ch.expectJSON(ctx, setupMsg, &t.setup)
	if err != nil {
		return err
	}
	c := codec{fds: fds, reading: true}
	c.fd(&t.token.fd)
	t.fds = c.fds
	t.setup.eachFD(c.fd)
	if c.err != nil || len(c.fds) > 0 {
		return fmt.Errorf("%d file descriptors do not belong to what is listened on", len(fds))
	}
	return roomFor(t.setup.Files)
}

// roomFor reports whether so many more file descriptors can be open.
func roomFor(n int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read file descriptor limit: %w", err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("count open file descriptors: %w", err)
	}
	if need := uint64(len(open) + n + 16); need > limit.Cur {
		return fmt.Errorf("taking over needs about %d file descriptors, and the limit is %d: raise it (ulimit -n)",
			need, limit.Cur)
	}
	return nil
}

// message handles what comes between setup and commit. It owns the file descriptors.
func (t *taker) message(m message, b *balancer.Balancer) error {
	t.fds = append(t.fds, m.fds...)
	switch m.kind {
	case frozenMsg:
		return json.Unmarshal(m.payload, &t.since)
	case countersMsg:
		err := json.Unmarshal(m.payload, &t.counts)
		for _, o := range t.counts.OverShare {
			b.ExceedsShare(o.Service, o.Times)
		}
		return err
	}
	c := codec{b: m.payload, fds: m.fds, reading: true}
	for c.more() {
		c.record(func() { t.record(&c, m.kind, b) })
	}
	if c.err == nil && len(c.fds) > 0 {
		return fmt.Errorf("message %d has %d file descriptors too many", m.kind, len(c.fds))
	}
	return c.err
}

// record handles one record of a message.
func (t *taker) record(c *codec, of kind, b *balancer.Balancer) {
	switch of {
	case offersMsg:
		var f tcp.Frozen
		c.offer(&f)
		t.offers[f.Offer] = f
	case connsMsg:
		t.receiveConn(c)
	case flowsMsg:
		t.flows = append(t.flows, udp.Frozen{})
		f := &t.flows[len(t.flows)-1]
		if c.flow(f); !t.setup.listensAt(f.Listening, f.Member) {
			c.fail(errors.New("a flow of a frontend that is not listened for"))
		}
	case assocsMsg:
		var f sctp.Frozen
		c.assoc(&f)
		t.assocs = append(t.assocs, f)
	case clientsMsg:
		var a affinity
		if c.affinity(&a); c.err == nil {
			b.Memory().RememberClients(a.id, a.clients)
		}
	case conversationsMsg:
		var one conversations
		if c.conversations(&one); c.err == nil {
			b.Memory().RememberConversations(one.id, one.all)
		}
	case ratesMsg:
		var one rates
		if c.rates(&one); c.err == nil {
			b.Memory().RememberClientRates(one.id, one.all)
		}
	case memoryMsg:
		var one balancer.Stats
		if c.memory(&one); c.err == nil {
			b.Memory().Remember([]balancer.Stats{one})
		}
	case timesMsg:
		var one times
		if c.times(&one); c.err == nil {
			b.Memory().RememberTimes(one.id, one.all)
		}
	case whysMsg:
		t.whys = append(t.whys, report.Chosen{})
		c.chosen(&t.whys[len(t.whys)-1])
	default:
		c.fail(fmt.Errorf("a message of the unknown type %d", of))
	}
}

// receiveConn keeps a connection that has stopped.
func (t *taker) receiveConn(c *codec) {
	t.conns = append(t.conns, tcp.Frozen{})
	f := &t.conns[len(t.conns)-1]
	if c.conn(f); f.Offer != 0 {
		known, ok := t.offers[f.Offer]
		if !ok {
			c.fail(fmt.Errorf("connection %d was not offered", f.Offer))
		}
		delete(t.offers, f.Offer)
		f.Client, f.Backend, f.Service, f.Addr = known.Client, known.Backend, known.Service, known.Addr
	}
}

// adopt sets in motion what has come. The token is ours.
func (t *taker) adopt(e *State, l *Listeners, frozen func(time.Duration)) (Report, error) {
	pause := func() time.Duration { return time.Duration(max(monotonic()-t.since, 0)) }
	thawed := func() {
		if t.since > 0 {
			frozen(pause())
		}
	}
	r := Report{Peer: t.setup.PID, From: t.setup.Program, Conns: len(t.conns), Flows: len(t.flows),
		Assocs: len(t.assocs)}
	for _, c := range t.conns {
		if c.Offer != 0 {
			r.Copied++
		}
	}
	e.LB.Queues().Resuming()
	errs := []error{e.TCP.Adopt(t.conns, thawed), e.UDP.Adopt(t.setup.UDP, t.flows, thawed),
		e.SCTP.Adopt(t.setup.SCTP, t.assocs, thawed)}
	e.LB.Queues().Resumed()
	if t.since > 0 {
		r.Frozen = pause()
	}
	for _, listening := range t.setup.TCP {
		errs = append(errs, e.TCP.AdoptListener(listening))
	}
	e.TCP.Restore(t.counts.TCP)
	e.UDP.Restore(t.counts.UDP)
	e.SCTP.Restore(t.counts.SCTP)
	e.Journal.Seed(append(t.setup.Events, t.counts.Events...))
	e.Kernel.Seed(append(t.setup.Ended, t.counts.Ended...))
	e.Kernel.SeedWhys(t.whys)
	l.Resume()
	return r, errors.Join(errs...)
}
