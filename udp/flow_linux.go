package udp

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/mmsg"
	"github.com/sluice-lb/sluice/internal/socket"
)

// trial is how long a backend that has not answered is sent datagrams one by one:
// only then do those that it refuses come back as they were.
const trial = int64(time.Second)

// pause is how long an idle flow waits between two looks whether its client's datagrams
// are among those that have not been read yet.
const pause = int64(50 * time.Millisecond)

// The directions of flow.plain.
const (
	toBackend = iota
	toClient
)

// loopFlow is the socket of a flow on a loop.
type loopFlow struct {
	client socket.Name // as the kernel knows it
	fd     int         // connected to the backend; -1 once closed
	ttl    int         // that the socket has; 0: it was not set

	inherited bool // the socket was another flow's; until it is watched

	roomy    bool    // the socket queues as much as those of frontends do
	plain    [2]bool // datagrams to the backend, and to the client, must go one by one
	trial    int64   // time until which they do so to the backend; 0 once it has answered
	lastSize int     // of the datagram sent last, with its header, bytes
	hops     int     // that what the flow sends may go (TTL, hop limit); 0: as many as the system allows

	timer eventloop.Timer
}

// HandleEvent passes the backend's answers on, or leaves it if it refuses.
func (f *flow) HandleEvent(ev eventloop.Event) {
	now := eventloop.Now()
	if ev&eventloop.Failed != 0 {
		if err := f.failure(nil); err != nil && f.asks() && !f.fail(err, now) {
			return
		}
	}
	f.receive(now)
}

// receive passes on what the backend has sent. The flow may be closed afterwards.
func (f *flow) receive(now int64) {
	sh := f.ln.shard
	for taken := 0; taken < perEvent; {
		n, err := sh.in.Read(f.fd, 0)
		if err == unix.EAGAIN {
			return
		}
		if err != nil {
			if err := f.failure(err); err != nil && f.asks() && !f.fail(err, now) {
				return
			}
			taken += slots
			continue
		}
		if f.replied || n > 1 || sh.in.Control(0).SegmentSize() > 0 {
			f.makeRoomy()
		}
		f.answered(now)
		f.trial = 0
		taken += f.reply(n)
		if n < slots {
			return
		}
	}
	_ = sh.loop.RearmRead(f.fd) // fails for a descriptor that is not watched only
}

// makeRoomy lets the kernel queue more than by default, and pass on together what has arrived together. It is called at
// the first sign of more than one question and one answer, which is all that a DNS client needs.
func (f *flow) makeRoomy() {
	if !f.roomy {
		f.roomy = true
		enableGRO(f.fd)
		socket.SetReceiveBuffer(f.fd, f.ln.shard.server.socketBuffer())
	}
}

// reply sends the n messages that were just received to the client, and returns how many
// datagrams there were.
func (f *flow) reply(n int) (total int) {
	sh := f.ln.shard
	out := &sh.out
	out.resetTo(&f.client, f.key.local, f.plain[toClient])
	defer func() { f.plain[toClient] = out.plain }()
	for i := range n {
		out.add(sh.in.Payload(i), sh.in.Control(i).SegmentSize())
	}
	total = out.left
	for out.left > 0 {
		sent, bytes, err := out.send(f.ln.fd)
		sh.count.DatagramsOut.Add(uint64(sent))
		sh.count.BytesOut.Add(uint64(bytes))
		f.moved(0, bytes)
		if err == nil {
			continue // if some are left, the next call says why
		}
		sh.count.SendErrors.Add(1)
		switch {
		case err == unix.EMSGSIZE:
			sh.count.TooLong.Add(1)
			out.skip()
		case ofHost(err):
			sh.count.Busy.Add(uint64(out.left))
			return total
		default: // no route to the client, or forbidden by a rule
			sh.count.Unreachable.Add(uint64(out.left))
			return total
		}
	}
	return total
}

// allow bounds the hops of what the flow sends by those that its client's datagrams had left when they arrived, less
// one, as a router does: a loop by way of another proxy ends. The bound is never raised, so that it costs a system
// call at the first datagram only.
func (f *flow) allow(left int) {
	hops := left - 1
	if f.hops != 0 && hops >= f.hops {
		return
	}
	if f.hops = hops; f.ttl != hops {
		f.ttl = hops
		level, option := unix.IPPROTO_IP, unix.IP_TTL
		if f.choice.Backend().Addr().Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
		}
		_ = unix.SetsockoptInt(f.fd, level, option, hops) // fails for numbers only that no packet has
	}
}

// send sends the datagrams of the shard's out to the backend, and to others if it
// refuses. The flow may be closed afterwards.
func (f *flow) send(now int64) {
	sh := f.ln.shard
	out := &sh.out
	if out.left > 1 {
		f.makeRoomy()
	}
	defer func() {
		if now >= f.trial {
			f.plain[toBackend] = out.plain
		}
	}()
	for out.left > 0 {
		sent, bytes, err := out.send(f.fd)
		if sent > 0 {
			sh.count.DatagramsIn.Add(uint64(sent))
			sh.count.BytesIn.Add(uint64(bytes))
			f.moved(bytes, 0)
			f.lastSize = len(f.header) + out.last
			if out.left == 0 {
				return
			}
		}
		sh.count.SendErrors.Add(1)
		switch failed := f.failure(err); {
		case failed != nil:
			if !f.fail(failed, now) {
				sh.count.Unreachable.Add(uint64(out.left))
				return
			}
			out.plain = true // a trial has begun
		case err == nil || err == unix.EHOSTUNREACH: // the next call says why, or it was about an earlier datagram
		case err == unix.EMSGSIZE:
			sh.count.TooLong.Add(1)
			out.skip()
		default:
			sh.count.Busy.Add(uint64(out.left))
			return
		}
	}
}

// failure returns why the backend is to be left, or nil. err is what a call on the
// socket said, if anything; what the kernel knows is in the socket's error queue,
// also if sendmmsg has swallowed it. The shard's quotes then hold the datagrams
// that came back.
func (f *flow) failure(err error) error {
	quotes := f.ln.shard.quotes
	n, _ := quotes.Read(f.fd, unix.MSG_ERRQUEUE)
	for i := range n {
		if queued := refusal(quotes, i); queued != 0 {
			return queued
		}
		if quotes.Control(i).HopsExceeded() {
			f.ln.shard.count.HopsExceeded.Add(1)
			if err == unix.EHOSTUNREACH {
				err = nil
			}
		}
	}
	if err == nil || err == unix.EMSGSIZE || ofHost(err) {
		return nil
	}
	return err
}

// refusal returns the i-th error of the queue if it means that a datagram did not arrive
// because of the backend, else 0. A datagram that was too long for the path is no refusal:
// the next one is sent in fragments. Neither is one whose hops were used up: that is up to the client.
func refusal(quotes *mmsg.Reader, i int) unix.Errno {
	errno, _ := quotes.Control(i).QueuedError()
	if errno == unix.EMSGSIZE || quotes.Control(i).HopsExceeded() {
		return 0
	}
	return errno
}

// resend sends what the last backend refused to the present one, if it came back
// whole. ICMP does not say whether it did, so only datagrams as long as the one
// sent last are taken: all, in the usual case of one question at a time.
func (l *loopTransport) resend(f *flow) {
	sh := l.shard
	sh.again.reset(true)
	for i := range sh.quotes.Len() {
		p := sh.quotes.Payload(i)
		if len(p) == f.lastSize && refusal(sh.quotes, i) != 0 {
			sh.again.add(p, 0)
		}
	}
	if sh.again.n == 0 {
		return
	}
	sent, bytes, err := sh.again.send(f.fd)
	if err != nil {
		sh.count.SendErrors.Add(1)
	}
	bytes -= sent * len(f.header) // which came back with them
	sh.count.Resent.Add(uint64(sent))
	sh.count.DatagramsIn.Add(uint64(sent))
	sh.count.BytesIn.Add(uint64(bytes))
	f.moved(bytes, 0)
}

// Expire closes the flow if it is idle. What has arrived and was not read yet is read first,
// be it an answer or from the client: the loop may have been paused for longer than the flow
// may be idle.
func (f *flow) Expire(*eventloop.Timer) {
	now, least := eventloop.Now(), int64(0)
	if f.rest(now) <= 0 || f.awaits != 0 && now-f.awaits >= f.patience(now) {
		f.receive(now)
	}
	if f.fd >= 0 && f.rest(now) <= 0 && f.leaving == 0 && // what is sent to one that leaves is another's
		!f.ln.caughtUp(f.active+f.idle(now), now) {
		least = pause
	}
	if f.fd >= 0 && !f.timer.Active() { // else it is closed, or reused for a client that was waiting
		f.expire(now, least)
	}
}

// asks reports whether the client has sent something that the backend has not answered since. An ICMP error at another
// time is late or forged: anyone who knows the ports can send one, and a conversation is not to move for that.
func (f *flow) asks() bool { return f.heard == 0 }
