package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
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

// Taker is one attempt to take over.
type Taker struct {
	// Frozen is passed the pause of each connection and flow. It is called
	// by many goroutines at once. May be nil.
	Frozen func(time.Duration)

	ch      *Channel
	token   token
	setup   setup
	ready   bool  // the setup is complete
	sockets []int // file descriptors of the setup, in its order
	parts   map[part][]byte
	offers  map[uint32]conn
	conns   []tcp.Frozen
	fills   []fill // of conns, in the order in which their bytes come
	flows   []udp.Frozen
	assocs  []sctp.Frozen
	counts  counters
	since   int64 // when the pause started; 0 before
	start   time.Time
	report  Report

	assocFDs []int // of associations that are still to come
	spare    []int // file descriptors that keep room for those that SCTP opens
}

// fill is room for bytes that wait in a connection.
type fill struct {
	conn     int
	toClient bool
	left     int
}

// Begin asks the process at the other end for everything, up to what is known before
// the first connection crosses. ErrGone: it has ended.
func Begin(ctx context.Context, ch *Channel, program string) (*Taker, error) {
	t := &Taker{ch: ch, token: token{-1}, parts: make(map[part][]byte), offers: make(map[uint32]conn),
		start: time.Now()}
	err := t.begin(ctx, program)
	if err != nil {
		t.giveUp(err)
		if errors.Is(err, ErrEnded) {
			err = ErrGone
		}
		return nil, fmt.Errorf("take over from the running process: %w", err)
	}
	return t, nil
}

func (t *Taker) begin(ctx context.Context, program string) error {
	ns, err := networkNamespace()
	if err != nil {
		return err
	}
	if err := t.ch.sendJSON(ctx, helloMsg, hello{Version: version, Program: program, PID: os.Getpid(),
		NetNS: ns}); err != nil {
		return err
	}
	var w welcome
	fds, err := t.ch.expectJSON(ctx, welcomeMsg, &w)
	if err != nil {
		return err
	}
	if len(fds) != 1 {
		closeAll(fds)
		return fmt.Errorf("a welcome with %d tokens", len(fds))
	}
	t.token = token{fds[0]}
	t.report.Peer, t.report.From = w.PID, w.Program
	if err := roomFor(w.Files); err != nil {
		return err
	}
	for !t.ready {
		m, err := t.ch.expect(ctx, partMsg)
		if err != nil {
			return err
		}
		if err := t.part(m.payload, nil); err != nil {
			return err
		}
	}
	for len(t.sockets) < t.setup.sockets() {
		m, err := t.ch.expect(ctx, socketsMsg)
		if err != nil {
			return err
		}
		if t.sockets = append(t.sockets, m.fds...); len(m.fds) == 0 || len(t.sockets) > t.setup.sockets() {
			return fmt.Errorf("%d listening sockets instead of %d", len(t.sockets), t.setup.sockets())
		}
	}
	return nil
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

// reserve keeps room for so many file descriptors, which are opened when there is no way back.
func (t *Taker) reserve(n int) error {
	for range n {
		fd, err := unix.FcntlInt(uintptr(t.ch.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("reserve %d file descriptors for SCTP: %w: raise the limit (ulimit -n)", n, err)
		}
		t.spare = append(t.spare, fd)
	}
	return nil
}

// Seed returns the seed for the balancer, to be set before its first table.
func (t *Taker) Seed() uint64 { return t.setup.Seed }

// Finish takes everything over. After nil it is e's, and in motion; what could not be
// had of it is in problems. After an error the running process has it all still, or
// has ended (ErrGone) before anything was given.
func (t *Taker) Finish(ctx context.Context, e *State, l *Listeners) (report Report, problems, err error) {
	ended := false
	err = t.take(ctx, e, l)
	if errors.Is(err, ErrEnded) {
		ended = true
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
	_ = t.ch.try(committedMsg, nil) // the other side would find the token gone anyway
	problems = t.adopt(e, l)
	if ended {
		problems = errors.Join(problems, fmt.Errorf("the running process ended before it had given everything: %d "+
			"connections were reset", len(t.offers)))
		for _, c := range t.offers {
			socket.Reset(c.Client)
			socket.Reset(c.Backend)
		}
	}
	for _, c := range t.offers { // they have ended since, or just were
		closeAll([]int{c.Client, c.Backend})
	}
	t.token.close()
	t.ch.Close()
	t.report.Took = time.Since(t.start)
	return t.report, problems, nil
}

// giveUp reports to the other side why, and closes all that has come.
func (t *Taker) giveUp(err error) {
	t.ch.refuse(err)
	closeAll(t.sockets)
	for _, c := range t.offers {
		closeAll([]int{c.Client, c.Backend})
	}
	for _, c := range t.conns {
		closeAll([]int{c.Client, c.Backend})
	}
	for _, f := range t.flows {
		closeAll([]int{f.FD})
	}
	t.closeAssocs()
	closeAll(t.spare)
	t.token.close()
	t.ch.Close()
}

// take receives until everything is here.
func (t *Taker) take(ctx context.Context, e *State, l *Listeners) error {
	if err := e.SCTP.CanAdopt(&t.setup.SCTP); err != nil {
		return err
	}
	if err := t.reserve(t.setup.SCTP.Opens()); err != nil {
		return err
	}
	if err := e.Agent.Adopt(t.setup.Agent); err != nil {
		return err
	}
	if err := l.offer(t.setup.HTTP, t.sockets[len(t.sockets)-len(t.setup.HTTP):]); err != nil {
		return err
	}
	t.sockets = t.sockets[:len(t.sockets)-len(t.setup.HTTP)]
	for {
		m, err := t.ch.receive(ctx)
		if err != nil {
			return err
		}
		if m.kind == preparedMsg {
			if err := t.ch.send(ctx, readyMsg, nil); err != nil {
				return err
			}
			continue
		}
		done, err := t.message(m, e)
		if done || err != nil {
			return err
		}
	}
}

// message handles what comes between setup and commit, and reports whether it was the
// latter. Descriptors that it does not keep are closed.
func (t *Taker) message(m message, e *State) (done bool, err error) {
	kept := false
	defer func() {
		if !kept {
			closeAll(m.fds)
		}
	}()
	switch m.kind {
	case partMsg:
		return false, t.part(m.payload, e)
	case offersMsg:
		kept, err = t.receiveOffers(m)
	case connsMsg:
		kept, err = t.receiveConns(m)
	case flowsMsg:
		kept, err = t.receiveFlows(m)
	case assocSocketsMsg:
		kept, err = t.assocSockets(m)
	case bytesMsg:
		err = t.receiveBytes(m.payload)
	case frozenMsg:
		var f frozen
		err = json.Unmarshal(m.payload, &f)
		t.since = f.Since
	case commitMsg:
		return true, nil
	default:
		err = fmt.Errorf("a message of the unknown type %d", m.kind)
	}
	return false, err
}

// part takes a piece of something long, and uses it when it is complete.
func (t *Taker) part(payload []byte, e *State) error {
	if len(payload) < 2 {
		return errTruncated
	}
	p := part(payload[0])
	b := append(t.parts[p], payload[2:]...)
	if len(b) > maxPart {
		return fmt.Errorf("part %d is longer than %d bytes", p, maxPart)
	}
	if payload[1] == 0 {
		t.parts[p] = b
		return nil
	}
	t.parts[p] = nil
	switch {
	case p == setupPart:
		if err := json.Unmarshal(b, &t.setup); err != nil {
			return fmt.Errorf("decode setup: %w", err)
		}
		t.ready = true
	case e == nil:
		return fmt.Errorf("part %d came before the setup", p)
	case p == clientsPart:
		return decodeClients(b, e)
	case p == memoryPart:
		return decodeMemory(b, e)
	case p == assocsPart:
		return t.receiveAssocs(b)
	case p == countersPart:
		if err := json.Unmarshal(b, &t.counts); err != nil {
			return fmt.Errorf("decode counters: %w", err)
		}
	default:
		return fmt.Errorf("the unknown part %d", p)
	}
	return nil
}

// receiveOffers keeps connections that still relay elsewhere.
func (t *Taker) receiveOffers(m message) (kept bool, err error) {
	r := reader{b: m.payload}
	var batch []conn
	for r.more() {
		c := readConn(&r)
		batch = append(batch, c)
	}
	if r.err != nil {
		return false, r.err
	}
	if len(m.fds) != 2*len(batch) {
		return false, fmt.Errorf("%d file descriptors for %d connections", len(m.fds), len(batch))
	}
	for i, c := range batch {
		c.Client, c.Backend = m.fds[2*i], m.fds[2*i+1]
		t.offers[c.Offer] = c
	}
	return true, nil
}

// receiveConns keeps connections that have stopped.
func (t *Taker) receiveConns(m message) (kept bool, err error) {
	r := reader{b: m.payload}
	var batch []conn
	fds := m.fds
	for r.more() {
		c := readConn(&r)
		switch known, ok := t.offers[c.Offer]; {
		case r.err != nil:
		case ok:
			c.Client, c.Backend, c.Service, c.Addr = known.Client, known.Backend, known.Service, known.Addr
			delete(t.offers, c.Offer)
		case c.Offer != 0:
			r.fail(fmt.Errorf("connection %d was not offered", c.Offer))
		default:
			n := 1
			if c.Backend >= 0 {
				n = 2
			}
			if len(fds) < n {
				r.fail(fmt.Errorf("file descriptors are missing"))
				break
			}
			if c.Client = fds[0]; n == 2 {
				c.Backend = fds[1]
			}
			fds = fds[n:]
		}
		if r.err == nil {
			batch = append(batch, c)
		}
	}
	if r.err == nil && len(fds) > 0 || len(t.conns)+len(batch) > maxConns {
		r.fail(fmt.Errorf("%d file descriptors, or connections, too many", len(fds)))
	}
	for _, c := range batch {
		for _, f := range [...]fill{{len(t.conns), false, c.toBackend}, {len(t.conns), true, c.toClient}} {
			if f.left > 0 {
				t.fills = append(t.fills, f)
			}
		}
		t.conns = append(t.conns, c.Frozen)
	}
	closeAll(fds)
	return true, r.err // what is in conns is closed with them
}

// receiveBytes adds bytes to the connections in which they wait.
func (t *Taker) receiveBytes(b []byte) error {
	for len(b) > 0 {
		if len(t.fills) == 0 {
			return errors.New("bytes of no connection")
		}
		f := &t.fills[0]
		n := min(f.left, len(b))
		c := &t.conns[f.conn]
		if f.toClient {
			c.ToClient.Waiting = append(c.ToClient.Waiting, b[:n]...)
		} else {
			c.ToBackend.Waiting = append(c.ToBackend.Waiting, b[:n]...)
		}
		b = b[n:]
		if f.left -= n; f.left == 0 {
			t.fills = t.fills[1:]
		}
	}
	return nil
}

func (t *Taker) receiveFlows(m message) (kept bool, err error) {
	r := reader{b: m.payload}
	var batch []udp.Frozen
	for r.more() {
		f := readFlow(&r)
		if r.err == nil && (f.Listening >= len(t.setup.UDP) || f.Member >= t.setup.UDP[f.Listening].Sockets) {
			r.fail(fmt.Errorf("a flow of a frontend that is not listened for"))
		}
		batch = append(batch, f)
	}
	if r.err != nil {
		return false, r.err
	}
	if len(m.fds) != len(batch) || len(t.flows)+len(batch) > maxConns {
		return false, fmt.Errorf("%d file descriptors for %d flows", len(m.fds), len(batch))
	}
	for i, f := range batch {
		f.FD = m.fds[i]
		t.flows = append(t.flows, f)
	}
	return true, nil
}

// adopt sets in motion what has come. The token is ours.
func (t *Taker) adopt(e *State, l *Listeners) error {
	var errs []error
	for len(t.fills) > 0 { // the giver was killed in the middle of it: these are lost
		c := &t.conns[t.fills[0].conn]
		socket.Reset(c.Client)
		t.fills = t.fills[1:]
	}
	thawed := func() {
		if t.Frozen != nil && t.since > 0 {
			t.Frozen(time.Duration(max(monotonic()-t.since, 0)))
		}
	}
	for _, c := range t.conns {
		if c.Offer != 0 {
			t.report.Copied++
		}
	}
	t.report.Conns, t.report.Flows, t.report.Assocs = len(t.conns), len(t.flows), len(t.assocs)
	errs = append(errs, e.TCP.Adopt(t.conns, thawed))
	fds := t.sockets
	take := func(n int) []int {
		out := fds[:n:n]
		fds = fds[n:]
		return out
	}
	var streams []tcp.Listening
	for _, s := range t.setup.TCP {
		s.Listening.FDs = take(s.Sockets)
		streams = append(streams, s.Listening)
	}
	var datagrams []udp.Listening
	for _, s := range t.setup.UDP {
		s.Listening.FDs = take(s.Sockets)
		datagrams = append(datagrams, s.Listening)
	}
	errs = append(errs, e.UDP.Adopt(datagrams, t.flows, thawed))
	errs = append(errs, t.adoptSCTP(e, take, thawed))
	if t.since > 0 {
		t.report.Frozen = time.Duration(max(monotonic()-t.since, 0))
	}
	for _, s := range streams {
		errs = append(errs, e.TCP.AdoptListener(s))
	}
	e.TCP.Restore(t.counts.TCP)
	e.UDP.Restore(t.counts.UDP)
	l.Open()
	return errors.Join(errs...)
}
