package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb/balancer"
)

const (
	// smallRead is the buffer of a direction that carries messages, largeRead that of one that keeps filling it:
	// from when manyReads more reads have filled the small one than not, until as many would not have.
	smallRead, largeRead = 4 << 10, 64 << 10
	manyReads            = 4

	// lastWords is how long what a peer has sent before it reset the connection may take to be passed on.
	lastWords = time.Second
)

var largeBuffers = sync.Pool{New: func() any { return new([largeRead]byte) }}

// goroutineConn is one proxied connection without a loop. One goroutine dials and then copies from the backend to the
// client, the other copies from the client to the backend.
type goroutineConn struct {
	srv    *Server
	count  *counts
	cancel context.CancelFunc // of the dial
	client *net.TCPConn
	from   netip.Addr // the client's
	choice balancer.Choice
	claim  session.Claim // guarded by goroutines.mu

	mu      sync.Mutex   // guards the following
	backend *net.TCPConn // nil until it has answered
	spoke   bool         // the backend has sent something, or ended its stream
	reset   bool         // the backend has reset it before that
	failed  bool         // an error has ended it, and is counted
	aborted bool
}

// run serves the connection until both directions have ended, and closes its sockets.
func (r *goroutineConn) run(ctx context.Context, a *acceptor) {
	defer r.close()
	flow, err := a.flow(r.client)
	if err != nil { // the client was not steered here, or has gone already
		r.count.Dialling.Add(-1)
		r.count.NoService.Add(1)
		r.abort()
		return
	}
	r.from = flow.Client
	if !r.srv.goroutines.claim(r, flow) {
		r.count.Dialling.Add(-1)
		r.abort()
		return
	}
	backend := sync.OnceValue(func() *net.TCPConn {
		defer r.srv.goroutines.dialled(r)
		c := r.dial(ctx, flow)
		if c == nil {
			r.abort()
		}
		return c
	})
	var upstream sync.WaitGroup
	upstream.Go(func() { r.copy(r.client, backend) })
	if c := backend(); c != nil {
		r.copy(c, func() *net.TCPConn { return r.client })
	}
	upstream.Wait()
}

// copy passes on what src sends until its end, and the end too. It reads before it asks for dst, which waits for the
// backend, so that it is noticed when the client gives up; there may be none.
func (r *goroutineConn) copy(src *net.TCPConn, dst func() *net.TCPConn) {
	var meter balancer.Meter // one for each direction, since it is for one goroutine
	small := make([]byte, smallRead)
	var large *[largeRead]byte
	defer func() {
		meter.Flush(r.choice)
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	spoke := src == r.client // a client is not judged
	for buf, full := small, 0; ; {
		n, err := src.Read(buf)
		failed := err != nil && err != io.EOF
		if failed {
			r.readFailed(src) // ends a dial, too
		}
		to := dst()
		if to == nil || failed {
			return
		}
		if !spoke && (n > 0 || err == io.EOF) {
			spoke = true
			r.backendSpoke()
		}
		if n > 0 {
			sent, err := to.Write(buf[:n])
			r.countBytes(&meter, to, sent)
			if err != nil {
				r.writeFailed(to)
				return
			}
		}
		if err == io.EOF {
			_ = to.CloseWrite() // fails if it was reset meanwhile, which its reader notices
			return
		}
		if n < smallRead {
			full = max(full-1, 0)
		} else {
			full = min(full+1, manyReads)
		}
		switch {
		case large == nil && full == manyReads:
			large = largeBuffers.Get().(*[largeRead]byte)
			buf = large[:]
		case large != nil && full == 0:
			largeBuffers.Put(large)
			large, buf = nil, small
		}
	}
}

// countBytes counts what one call has written to dst.
func (r *goroutineConn) countBytes(meter *balancer.Meter, dst *net.TCPConn, n int) {
	if dst == r.client {
		r.count.BytesOut.Add(uint64(n))
		meter.Add(r.choice, 0, n)
	} else {
		r.count.BytesIn.Add(uint64(n))
		meter.Add(r.choice, n, 0)
	}
}

// readFailed ends the connection after an error of from's peer: the other is reset.
func (r *goroutineConn) readFailed(from *net.TCPConn) {
	r.fail(from)
	r.abort()
}

// writeFailed ends the connection after to's peer has reset it. What the peer had sent before is passed on by the other
// direction, which then ends it all, since an answer followed by a reset is how some servers refuse a request.
func (r *goroutineConn) writeFailed(to *net.TCPConn) {
	r.fail(to)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.aborted {
		_ = to.SetReadDeadline(time.Now().Add(lastWords)) // it cannot fail on an open socket
	}
}

// fail notes an error on one side, the first one only.
func (r *goroutineConn) fail(side *net.TCPConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed || r.aborted {
		return
	}
	r.failed = true
	if side == r.client {
		r.count.ClientResets.Add(1)
	} else {
		r.count.BackendResets.Add(1)
		r.reset = !r.spoke
	}
}

// backendSpoke notes that the backend has sent something, or ended its stream.
func (r *goroutineConn) backendSpoke() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoke, r.reset = true, false // what it has sent before a reset may be read after that is noticed
	r.choice.Spoke()
}

// abort makes both directions end at once, and close reset their sockets. Any goroutine may call it, at any time.
func (r *goroutineConn) abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.aborted = true
	r.cancel()
	wake(r.client)
	if r.backend != nil {
		wake(r.backend)
	}
}

// wake ends every call on a socket, now and later. To close it would, too; but a reset is sent for certain only by a
// close that interrupts no call.
func wake(c *net.TCPConn) { _ = c.SetDeadline(time.Unix(1, 0)) }

// close ends the connection when both directions have ended.
func (r *goroutineConn) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range []*net.TCPConn{r.client, r.backend} {
		if c == nil {
			continue
		}
		if r.failed || r.aborted {
			_ = c.SetLinger(0) // shows the peer that this was not the end of the stream
		}
		_ = c.Close()
	}
	if r.reset {
		r.choice.WasReset(session.ErrReset, r.from, eventloop.Now())
		return
	}
	r.choice.Done(nil)
}

// dial returns the first of the backends that answers. nil: there is none, or the client has given up.
func (r *goroutineConn) dial(ctx context.Context, flow balancer.Flow) *net.TCPConn {
	config, count := r.srv.WithDefaults(), &r.count.Stats
	var ladder session.Ladder
	ladder.Start(flow)
	var turn balancer.Choice
	var place balancer.Waiter
	defer place.Leave()
	for {
		choice, timeout, err := ladder.Turn(&config, turn)
		turn = balancer.Choice{}
		if err == balancer.ErrNoBackend && r.hold(ctx, &flow) {
			continue
		}
		if err == balancer.ErrFull {
			if turn, err = r.queue(ctx, &config, &ladder, &place); err == nil {
				continue
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		if err != nil {
			if err != errTimedOut {
				session.Refuse(count, err)
			}
			return nil
		}
		count.Dials.Add(1)
		dialer := net.Dialer{Timeout: timeout, KeepAliveConfig: probes, Control: dialControl}
		c, err := dialer.DialContext(ctx, "tcp", choice.Backend().String())
		var slow net.Error
		switch {
		case err == nil:
			count.Established.Add(1)
			r.choice = choice
			ladder.Answered(choice)
			return r.answered(c.(*net.TCPConn), &flow)
		case ctx.Err() != nil:
			choice.Done(nil)
			return nil
		case session.Shortage(err) && ladder.Short(count):
			choice.Done(nil) // not the backend's fault
			if !wait(ctx, session.ShortageRetry) {
				return nil
			}
			continue
		case errors.As(err, &slow) && slow.Timeout():
			count.DialTimedOut.Add(1)
		default:
			count.DialRefused.Add(1)
		}
		ladder.Failed(choice)
		ladder.End(choice, err).Done(nil)
	}
}

// hold waits until the Service has a backend. False: it does not request that, or it has taken too long. That the
// client leaves meanwhile is noticed afterwards.
func (r *goroutineConn) hold(ctx context.Context, flow *balancer.Flow) bool {
	held, wait, full := r.srv.LB.Queues().Hold(flow, eventloop.Now())
	if full {
		r.count.HoldFull.Add(1)
	}
	if !held.Valid() {
		return false
	}
	defer held.End()
	r.count.Dialling.Add(-1)
	defer r.count.Dialling.Add(1)
	r.count.Holds.Add(1)
	r.count.Held.Add(1)
	defer r.count.Held.Add(-1)
	over := time.NewTimer(time.Duration(wait))
	defer over.Stop()
	for {
		changed := r.srv.goroutines.nextTable()
		if r.srv.LB.Queues().HoldEnds(flow) {
			return true
		}
		select {
		case <-changed:
		case <-over.C:
			r.count.HoldExpired.Add(1)
			held.Refused()
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// errTimedOut says that a client has waited in the queue for long enough; it is counted.
var errTimedOut = errors.New("no room within the queue timeout")

// queue waits until it is the turn of the client, and returns the choice made for it, if there is any backend. That the
// client leaves meanwhile is noticed afterwards.
func (r *goroutineConn) queue(ctx context.Context, config *Config, ladder *session.Ladder,
	place *balancer.Waiter) (balancer.Choice, error) {
	served := make(chan struct{}, 1)
	place.Wake = func() { served <- struct{}{} }
	wait, err := ladder.Queue(config, place)
	if err != nil {
		return balancer.Choice{}, err
	}
	r.count.Dialling.Add(-1)
	defer r.count.Dialling.Add(1)
	r.count.Queues.Add(1)
	r.count.Queued.Add(1)
	defer r.count.Queued.Add(-1)
	over := time.NewTimer(time.Duration(wait))
	defer over.Stop()
	select {
	case <-served:
		return place.Turn(), nil
	case <-over.C:
		if place.Served() {
			return place.Turn(), nil
		}
		place.TimedOut()
		r.count.QueueTimedOut.Add(1)
		return balancer.Choice{}, errTimedOut
	case <-ctx.Done():
		return balancer.Choice{}, ctx.Err()
	}
}

// answered makes c the backend, unless the relay has been aborted meanwhile, and has it hear of the client first.
func (r *goroutineConn) answered(c *net.TCPConn, flow *balancer.Flow) *net.TCPConn {
	if r.choice.ProxyVersion() != 0 {
		// There is room in a socket that nothing was sent by. One that has failed fails the next write, too.
		_, _ = c.Write(r.srv.goroutines.announcement(flow, r.choice))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backend = c
	if r.aborted {
		wake(c)
	}
	return c
}

// wait waits for d. False: ctx has ended first.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
