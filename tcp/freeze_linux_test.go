package tcp

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// dup is a descriptor of another process.
func dup(t *testing.T, fd int) int {
	if fd < 0 {
		return fd
	}
	return dupFrom(t, fd, 0)
}

// dupFrom is dup, with the lowest number that is free from least on.
func dupFrom(t *testing.T, fd, least int) int {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, least)
	if err != nil {
		t.Error(err)
	}
	return n
}

// moved is what a successor has of a Server that has halted.
type moved struct {
	listening []Listening
	conns     []Frozen
	offered   int
}

// freezeAll takes copies of everything, as a successor gets them: offers first,
// while all goes on, then the rest from halted loops.
func (p *proxy) freezeAll() (m moved, resume func()) {
	p.t.Helper()
	type sockets [2]int
	offers := make(map[uint32]sockets)
	for i := range p.Shards() {
		for {
			n, err := p.Offer(i, 5, func(batch []Frozen) error {
				for _, f := range batch {
					offers[f.Offer] = sockets{dup(p.t, f.Client), dup(p.t, f.Backend)}
				}
				return nil
			})
			check(p.t, err)
			if n < 5 {
				break
			}
		}
	}
	resume, err := p.Loops.Halt()
	check(p.t, err)
	for _, l := range p.Listening() {
		l.FDs = slices.Clone(l.FDs)
		for i := range l.FDs {
			l.FDs[i] = dup(p.t, l.FDs[i])
		}
		m.listening = append(m.listening, l)
	}
	m.offered = len(offers)
	check(p.t, p.Freeze(func(f *Frozen) error {
		c := *f
		c.ToBackend.Waiting, c.ToClient.Waiting = bytes.Clone(c.ToBackend.Waiting), bytes.Clone(c.ToClient.Waiting)
		if fds, ok := offers[f.Offer]; ok {
			c.Client, c.Backend = fds[0], fds[1]
			delete(offers, f.Offer)
		} else {
			c.Client, c.Backend = dup(p.t, f.Client), dup(p.t, f.Backend)
		}
		m.conns = append(m.conns, c)
		return nil
	}))
	for _, fds := range offers { // they have ended since
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
	}
	return m, resume
}

// vanish does to a halted Server what the end of its process does: its descriptors
// are closed, and that is all.
func (p *proxy) vanish(resume func()) {
	for _, sh := range p.shards {
		for _, c := range sh.all() {
			c.Shared = false
			_ = sh.Loop.Detach(c.client.FD())
			if c.backend.FD() >= 0 {
				_ = sh.Loop.Detach(c.backend.FD())
			}
			sh.End(c)
		}
		for _, l := range p.listeners {
			for _, member := range l.sockets {
				_ = sh.Loop.Detach(member.(*session.Listener[*conn]).FD) // fails on all loops but one
			}
		}
	}
	for _, l := range p.listeners {
		for _, member := range l.sockets {
			_ = unix.Close(member.(*session.Listener[*conn]).FD)
		}
	}
	clear(p.listeners)
	resume()
}

// successor returns a Server that has what another had, with as many loops.
func (p *proxy) successor(loops int) *proxy {
	p.t.Helper()
	next := newProxy(p.t, loops)
	next.addr, next.OriginalDst, next.DialTimeouts = p.addr, p.OriginalDst, p.DialTimeouts
	next.LB.Update(p.LB.Table())
	return next
}

// moveTo moves everything from one Server to another.
func (p *proxy) moveTo(next *proxy) moved {
	p.t.Helper()
	m, resume := p.freezeAll()
	next.LB.Memory().Remember(p.LB.Counters().All())
	stats := p.Stats()
	p.vanish(resume)
	var thawed atomic.Int64
	check(p.t, next.Adopt(m.conns, func() { thawed.Add(1) }))
	if thawed.Load() != int64(len(m.conns)) {
		p.t.Errorf("%d of %d connections thawed", thawed.Load(), len(m.conns))
	}
	next.Restore(stats)
	for _, l := range m.listening {
		check(p.t, next.AdoptListener(l))
	}
	return m
}

// halves sends size bytes of a pattern in random pieces and ends, while it returns the
// hash of what it gets; which end ends first is left to chance.
func halves(c *net.TCPConn, seed uint64, size int64) ([]byte, error) {
	var wg sync.WaitGroup
	var sendErr error
	wg.Go(func() {
		r, from := rand.New(rand.NewPCG(seed, 1)), newPattern(seed)
		for left := size; left > 0 && sendErr == nil; {
			n := min(left, 1+r.Int64N(64<<10))
			if r.IntN(16) == 0 {
				n = min(left, 1<<20) // more than sockets hold
			}
			if r.IntN(2) == 0 {
				time.Sleep(time.Duration(r.IntN(int(4 * time.Millisecond)))) // a sender that pauses, as people do
			}
			_, sendErr = io.CopyN(plain{c}, from, n)
			left -= n
		}
		if sendErr == nil {
			sendErr = c.CloseWrite()
		}
	})
	h, r := sha256.New(), rand.New(rand.NewPCG(seed, 2))
	var err error
	for err == nil {
		if r.IntN(8) == 0 {
			time.Sleep(time.Duration(r.IntN(int(20 * time.Millisecond)))) // a receiver that pauses
		}
		_, err = io.CopyN(h, plain{c}, 1+r.Int64N(512<<10))
	}
	if err == io.EOF {
		err = nil
	}
	wg.Wait()
	return h.Sum(nil), errors.Join(err, sendErr)
}

// TestMoveUnderLoad: streams both ways go on through a chain of Servers, with more and
// fewer loops, while new connections are made.
func TestMoveUnderLoad(t *testing.T) {
	const streams, moves = 40, 8
	size := int64(8 << 20)
	if testing.Short() {
		size = 2 << 20
	}
	sums := make(chan []byte, streams)
	var failed atomic.Int32
	p := startProxy(t, patient, backend(t, func(c *net.TCPConn) {
		_ = c.SetDeadline(time.Now().Add(5 * patience))
		first := make([]byte, 1)
		if _, err := io.ReadFull(c, first); err != nil {
			failed.Add(1)
			return
		}
		if first[0] == 'n' { // one of the new ones
			_, _ = io.WriteString(c, "hello")
			return
		}
		_ = c.SetReadBuffer(64 << 10)
		sum, err := halves(c, 2, size)
		if err != nil {
			t.Errorf("server: %v", err)
		}
		sums <- sum
	}))
	var wg sync.WaitGroup
	for i := range streams {
		c := p.dial()
		if i%2 == 0 {
			_ = c.SetReadBuffer(64 << 10) // so that bytes wait for it
		}
		_ = c.SetDeadline(time.Now().Add(5 * patience))
		wg.Go(func() {
			if _, err := io.WriteString(c, "s"); err != nil {
				t.Error(err)
			}
			if got, err := halves(c, 1, size); err != nil || !bytes.Equal(got, sum(2, size)) {
				t.Errorf("the client did not get what the server sent: %v", err)
			}
			_ = c.Close()
		})
	}
	stop := make(chan struct{})
	fresh := 0
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			c := p.dial()
			if _, err := io.WriteString(c, "n"); err != nil {
				t.Errorf("a new connection: %v", err)
			}
			if b, err := io.ReadAll(c); err != nil || string(b) != "hello" {
				t.Errorf("a new connection got %q, %v", b, err)
			}
			_ = c.Close()
			fresh++
		}
	})
	at, crossed, offered, waiting := p, 0, 0, 0
	for i := range moves {
		next := p.successor(1 + i%3)
		m := at.moveTo(next)
		crossed, offered = crossed+len(m.conns), offered+m.offered
		for _, f := range m.conns {
			waiting += len(f.ToBackend.Waiting) + len(f.ToClient.Waiting)
		}
		at = next
		time.Sleep(20 * time.Millisecond) // the load between two moves
	}
	close(stop)
	wg.Wait()
	want := sum(1, size)
	for range streams {
		if !bytes.Equal(<-sums, want) {
			t.Error("the server did not get what the client sent")
		}
	}
	at.eventually("all connections have ended", func(s Stats) bool { return s.Active == 0 })
	s := at.Stats()
	t.Logf("%d moves of %d connections, %d of them offered before, with %d bytes in hand; %d new connections", moves, crossed, offered, waiting, fresh)
	if s.Accepted != uint64(streams+fresh) || s.ClientResets+s.BackendResets > 0 || failed.Load() > 0 {
		t.Errorf("stats %+v, want %d accepted and no reset", s, streams+fresh)
	}
	if got := s.BytesIn; got != uint64(streams)*uint64(size+1)+uint64(fresh) {
		t.Errorf("%d bytes counted in, want %d", got, streams*(size+1)+int64(fresh))
	}
	for _, service := range at.LB.Counters().All() {
		if service.InFlight != 0 || service.Picks != uint64(streams+fresh) {
			t.Errorf("balancer: %+v, want %d picks and none in flight", service, streams+fresh)
		}
	}
}

// TestMoveAtRest: everything that can wait in a connection crosses: half-closes of
// either side, bytes that are not read, more than a buffer holds of them.
func TestMoveAtRest(t *testing.T) {
	const stalled = 8 << 20
	release := make(chan struct{})
	p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
		kind := make([]byte, 1)
		if _, err := io.ReadFull(c, kind); err != nil {
			t.Error(err)
		}
		switch kind[0] {
		case 'c': // answers after the client's end
			b, _ := io.ReadAll(c)
			_, _ = c.Write(bytes.ToUpper(b))
		case 's': // ends first
			_, _ = io.WriteString(c, "greeting")
			_ = c.CloseWrite()
			b, err := io.ReadAll(c)
			if err != nil || string(b) != "later" {
				t.Errorf("the server got %q, %v after its own end", b, err)
			}
		case 'b': // takes nothing for a while
			<-release
			h := sha256.New()
			if _, err := io.Copy(h, plain{c}); err != nil || !bytes.Equal(h.Sum(nil), sum(3, stalled)) {
				t.Errorf("the server did not get the bytes that waited: %v", err)
			}
		}
	}))
	clientFirst, serverFirst, bulk := p.dial(), p.dial(), p.dial()
	_, _ = io.WriteString(clientFirst, "cquestion")
	_, _ = io.WriteString(serverFirst, "s")
	if b, err := io.ReadAll(serverFirst); err != nil || string(b) != "greeting" {
		t.Fatalf("greeting = %q, %v", b, err)
	}
	_, _ = io.WriteString(bulk, "b")
	p.eventually("all are connected", func(s Stats) bool { return s.Established == 3 && s.BytesIn >= 11 })
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.CopyN(plain{bulk}, newPattern(3), stalled); err != nil {
			t.Error(err)
		}
		_ = bulk.CloseWrite()
	})
	full := func() uint64 { return p.Stats().BytesIn }
	for last := uint64(0); last < 1<<20 || last != full(); { // until nothing moves any more
		last = full()
		time.Sleep(50 * time.Millisecond) // the end of movement is no event
	}
	_, pipes := p.lent() // usually 1: whether a read fills the buffer is up to the kernel
	second := p.successor(3)
	m := p.moveTo(second)
	most := 0
	for _, f := range m.conns {
		most = max(most, len(f.ToBackend.Waiting))
	}
	t.Logf("%d bytes waited in one direction, %d pipes were in use", most, pipes)
	if most == 0 {
		t.Error("no bytes waited: nothing was tested")
	}
	_ = clientFirst.CloseWrite()
	third := second.successor(1)
	second.moveTo(third)
	if b, err := io.ReadAll(clientFirst); err != nil || string(b) != "QUESTION" {
		t.Errorf("answer = %q, %v", b, err)
	}
	_, _ = io.WriteString(serverFirst, "later")
	_ = serverFirst.CloseWrite()
	close(release)
	wg.Wait()
	third.eventually("all connections have ended", func(s Stats) bool { return s.Active == 0 })
}

// TestMoveWhileDialling: a connect in flight, and what has failed before it, crosses.
func TestMoveWhileDialling(t *testing.T) {
	mute := silent(t)
	p := startProxy(t, func(s *Server) { s.DialTimeouts = []time.Duration{2 * time.Second, 2 * time.Second, 2 * time.Second} },
		refusing(t), mute)
	asked := func(Stats) bool {
		return slices.ContainsFunc(p.LB.Counters().All()[0].Backends, func(b balancer.BackendStats) bool { return b.Addr == mute && b.InFlight > 0 })
	}
	var c *net.TCPConn
	for p.LB.Counters().All()[0].Failures == 0 { // until the refusing one was tried first: round robin starts anywhere
		c = p.dial()
		p.eventually("the silent one is asked", asked)
		if p.LB.Counters().All()[0].Failures == 0 {
			_ = c.SetLinger(0)
			_ = c.Close()
			p.eventually("the client is gone", func(s Stats) bool { return s.Active == 0 })
		}
	}
	next := p.successor(2)
	m := p.moveTo(next)
	if len(m.conns) != 1 || m.conns[0].Dial == nil || len(m.conns[0].Dial.Tried) != 1 || m.conns[0].Dial.Attempt != 1 {
		t.Fatalf("moved %+v, want one connection in its second attempt", m.conns)
	}
	if left := m.conns[0].Dial.Left; left <= 0 || left > 2*time.Second+time.Duration(eventloop.Tick) {
		t.Errorf("%v left of the attempt, want something below 2 s", left)
	}
	p2 := m.conns[0].Addr
	next.serve(naming(t, "new"), p2)
	if b, err := io.ReadAll(c); err != nil || string(b) != "new" {
		t.Errorf("the client got %q, %v", b, err)
	}
	_ = c.Close()
	next.eventually("the attempt has timed out and another succeeded", func(s Stats) bool { return s.DialTimedOut == 1 && s.Active == 0 })
}

// TestFreezeAndGoOn: a move that is given up leaves no mark, also not if another process keeps
// copies of the descriptors: ends and resets are passed on at once.
func TestFreezeAndGoOn(t *testing.T) {
	p := startProxy(t, nil, echoing(t), backend(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		_ = c.SetLinger(0)
	}))
	a, b := p.dial(), p.dial()
	p.eventually("both are connected", func(s Stats) bool { return s.Established == 2 })
	m, resume := p.freezeAll()
	p.Thaw()
	resume()
	for _, c := range []*net.TCPConn{a, b} {
		_, _ = io.WriteString(c, "x")
		_ = c.CloseWrite()
	}
	ends := 0
	for _, c := range []*net.TCPConn{a, b} {
		got, err := io.ReadAll(c)
		switch {
		case err == nil && string(got) == "x":
			ends |= 1
		case errors.Is(err, unix.ECONNRESET):
			ends |= 2
		default:
			t.Errorf("got %q, %v", got, err)
		}
	}
	if ends != 3 {
		t.Error("want one connection ended and one reset")
	}
	p.eventually("both have ended", func(s Stats) bool { return s.Active == 0 })
	for _, f := range m.conns {
		_ = errors.Join(unix.Close(f.Client), unix.Close(f.Backend))
	}
	for _, l := range m.listening {
		for _, fd := range l.FDs {
			_ = unix.Close(fd)
		}
	}
	c := p.dial()
	p.eventually("another is connected", func(s Stats) bool { return s.Established == 3 })
	again, resume := p.freezeAll()
	if len(again.conns) != 1 || again.conns[0].Offer != 1 {
		t.Errorf("a second attempt offers %+v, want one connection with the number 1", again.conns)
	}
	p.vanish(resume)
	next := p.successor(2)
	check(t, next.Adopt(again.conns, func() {}))
	for _, l := range again.listening {
		check(t, next.AdoptListener(l))
	}
	_ = c.Close()
	next.eventually("it has ended", func(s Stats) bool { return s.Active == 0 })
}

// TestSettledAfterFailedOffer: connections older than those of an offer that failed have
// their backends probed like any others.
func TestSettledAfterFailedOffer(t *testing.T) {
	p := startProxy(t, nil, echoing(t))
	for range 8 {
		roundTrip(t, p.dial())
	}
	failure := errors.New("gone")
	for loop := range p.Shards() {
		n, err := p.Offer(loop, 1, func([]Frozen) error { return failure })
		if n != 0 || err != nil && err != failure { // a loop may have none
			t.Errorf("Offer = %d, %v", n, err)
		}
	}
	p.Thaw()
	p.eventually("those that are there are settled", func(Stats) bool { return !p.settling() })
	p.eachShard(func(sh *shard) {
		for _, c := range sh.all() {
			if on, err := unix.GetsockoptInt(c.backend.FD(), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on == 0 || err != nil {
				t.Errorf("a backend is not probed: %v", err)
			}
		}
	})
}

// TestSettleInBatches: many connections that came at once are settled in small parts, the
// oldest first, also if some end between two of them.
func TestSettleInBatches(t *testing.T) {
	p := startProxy(t, nil, echoing(t))
	clients := make([]*net.TCPConn, 5*settleBatch)
	for i := range clients {
		clients[i] = p.dial()
	}
	p.eventually("all are connected", func(s Stats) bool { return s.Established == uint64(len(clients)) })
	p.eachShard(func(sh *shard) {
		sh.Loop.StopTimer(&sh.settle.timer) // and begin anew, wherever it has got to
		for _, c := range sh.all() {
			c.settled = false
		}
		sh.fresh = sh.all()[0]
		sh.settle.Expire(nil)
		n := 0
		for _, c := range sh.all() {
			if n++; c.settled != (n <= settleBatch) {
				t.Errorf("settled = %t of connection %d after one call", c.settled, n)
			}
		}
		if sh.fresh == nil {
			t.Error("a loop has too few connections")
			return
		}
		sh.Abort(sh.fresh)
		sh.Abort(sh.all()[0])
	})
	p.eventually("the rest is settled", func(Stats) bool { return !p.settling() })
	p.eachShard(func(sh *shard) {
		for _, c := range sh.all() {
			if !c.settled {
				t.Error("a connection was passed over")
			}
		}
	})
}

// settling reports whether a shard is about to settle connections.
func (p *proxy) settling() (is bool) {
	p.eachShard(func(sh *shard) { is = is || sh.settle.timer.Active() })
	return is
}

// all returns the connections of a shard, oldest first.
func (sh *shard) all() []*conn {
	return slices.Collect(sh.All())
}

// eachShard runs f for each shard, on its loop.
func (p *proxy) eachShard(f func(*shard)) {
	p.t.Helper()
	for _, sh := range p.shards {
		check(p.t, sh.Loop.Do(func() { f(sh) }))
	}
}
