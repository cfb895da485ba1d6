package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

const (
	// smallRead is the buffer of a direction that carries messages, largeRead that of
	// one that keeps filling it: after growAfter reads in a row, until shrinkAfter
	// that would not have.
	smallRead, largeRead   = 4 << 10, 64 << 10
	growAfter, shrinkAfter = 4, 4

	// lastWords is how long what a peer has sent before it reset the connection may
	// take to be passed on.
	lastWords = time.Second

	// hostRetry is how long a dial waits for descriptors, ports or memory of this
	// host before it tries again, and maxHostRetries how often it does so.
	hostRetry      = 50 * time.Millisecond
	maxHostRetries = 40
)

var largeBuffers = sync.Pool{New: func() any { return new([largeRead]byte) }}

// relay is one proxied connection without a loop. One goroutine dials and then copies
// from the backend to the client, the other copies from the client to the backend.
type relay struct {
	srv    *Server
	cancel context.CancelFunc // of the dial
	client *net.TCPConn
	choice lb.Choice

	mu      sync.Mutex   // guards the following
	backend *net.TCPConn // nil until it has answered
	failed  bool         // an error has ended it, and is counted
	aborted bool
}

// run serves the connection until both directions have ended, and closes its sockets.
func (r *relay) run(ctx context.Context, a *acceptor) {
	count := &r.srv.plain.count
	defer r.close()
	flow, err := a.flow(r.client)
	if err != nil { // the client was not steered here, or has gone already
		count.dialling.Add(-1)
		count.noService.Add(1)
		r.abort()
		return
	}
	dialled := make(chan *net.TCPConn, 1)
	var upstream sync.WaitGroup
	upstream.Go(func() { r.fromClient(dialled) })
	backend := r.dial(ctx, flow)
	count.dialling.Add(-1)
	if backend == nil {
		r.abort()
	}
	dialled <- backend
	if backend != nil {
		r.copy(r.client, backend, &count.bytesOut)
	}
	upstream.Wait()
}

// fromClient is the direction to the backend. It reads before there is one, so that
// it is noticed when the client gives up.
func (r *relay) fromClient(dialled <-chan *net.TCPConn) {
	early := make([]byte, smallRead)
	n, err := r.client.Read(early)
	if err != nil && err != io.EOF {
		r.readFailed(r.client)
	}
	backend := <-dialled
	if backend == nil {
		return
	}
	sent, sendErr := backend.Write(early[:n])
	r.srv.plain.count.bytesIn.Add(uint64(sent))
	switch {
	case sendErr != nil:
		r.writeFailed(backend)
	case err == io.EOF:
		_ = backend.CloseWrite() // fails if it was reset meanwhile, which its reader is told
	case err == nil:
		r.copy(backend, r.client, &r.srv.plain.count.bytesIn)
	}
}

// copy passes on what src sends until its end, and the end too.
func (r *relay) copy(dst, src *net.TCPConn, moved *atomic.Uint64) {
	buf := make([]byte, smallRead)
	small := buf
	var large *[largeRead]byte
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	for full, idle := 0, 0; ; {
		n, err := src.Read(buf)
		if n > 0 {
			sent, err := dst.Write(buf[:n])
			moved.Add(uint64(sent))
			if err != nil {
				r.writeFailed(dst)
				return
			}
		}
		switch {
		case err == io.EOF:
			_ = dst.CloseWrite() // fails if it was reset meanwhile, which its reader is told
			return
		case err != nil:
			r.readFailed(src)
			return
		}
		if n < smallRead {
			full, idle = 0, idle+1
		} else {
			full, idle = full+1, 0
		}
		switch {
		case large == nil && full >= growAfter:
			large = largeBuffers.Get().(*[largeRead]byte)
			buf = large[:]
		case large != nil && idle >= shrinkAfter:
			largeBuffers.Put(large)
			large, buf = nil, small
		}
	}
}

// readFailed ends the connection after an error of from's peer: the other is reset.
func (r *relay) readFailed(from *net.TCPConn) {
	r.fail(from)
	r.abort()
}

// writeFailed ends the connection after to's peer has reset it. What the peer had sent
// before may still be queued: it is passed on by the other direction, which then ends
// it all, since an answer followed by a reset is how some servers refuse a request.
func (r *relay) writeFailed(to *net.TCPConn) {
	r.fail(to)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.aborted {
		_ = to.SetReadDeadline(time.Now().Add(lastWords)) // it cannot fail on an open socket
	}
}

// fail notes an error on one side, the first one only.
func (r *relay) fail(side *net.TCPConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed || r.aborted {
		return
	}
	r.failed = true
	if side == r.client {
		r.srv.plain.count.clientResets.Add(1)
	} else {
		r.srv.plain.count.backendResets.Add(1)
	}
}

// abort has both directions end at once, and their sockets be reset by close. It may be
// called by any goroutine, at any time.
func (r *relay) abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.aborted = true
	r.cancel()
	wake(r.client)
	if r.backend != nil {
		wake(r.backend)
	}
}

// wake ends every call on a socket, now and later. (To close it would, too; but a
// reset is sent for certain only by a close that interrupts nobody.)
func wake(c *net.TCPConn) { _ = c.SetDeadline(time.Unix(1, 0)) }

// close ends the connection when nobody copies any more.
func (r *relay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range []*net.TCPConn{r.client, r.backend} {
		if c == nil {
			continue
		}
		if r.failed || r.aborted {
			_ = c.SetLinger(0) // has the peer see that this was not the end of the stream
		}
		_ = c.Close()
	}
	if r.choice.Valid() {
		r.choice.Done(nil)
	}
}

// dial tries one backend after the other, and returns the first that answers. nil: there
// is none, or the client has given up.
func (r *relay) dial(ctx context.Context, flow lb.Flow) *net.TCPConn {
	s, count := r.srv, &r.srv.plain.count
	var tried lb.Tried
	flow.Tried = &tried
	timeouts := s.dialTimeouts()
	for attempt, retries := 0, 0; attempt < len(timeouts); {
		choice, err := s.LB.Pick(flow)
		if err != nil {
			count.reason(err).Add(1)
			return nil
		}
		count.dials.Add(1)
		dialer := net.Dialer{Timeout: timeouts[attempt], KeepAliveConfig: s.keepAliveConfig(), Control: dialControl}
		c, err := dialer.DialContext(ctx, "tcp", choice.Backend().String())
		if err == nil {
			count.established.Add(1)
			r.choice = choice
			return r.answered(c.(*net.TCPConn))
		}
		if ctx.Err() != nil {
			choice.Done(nil)
			return nil
		}
		if shortage(err) && retries < maxHostRetries {
			choice.Done(nil) // not the backend's fault
			retries++
			count.shortages.Add(1)
			if !wait(ctx, hostRetry) {
				return nil
			}
			continue
		}
		var slow net.Error
		if errors.As(err, &slow) && slow.Timeout() {
			count.dialTimedOut.Add(1)
		} else {
			count.dialRefused.Add(1)
		}
		tried.Add(choice)
		choice.Done(err)
		flow.Now = eventloop.Now()
		attempt++
	}
	count.dialGaveUp.Add(1)
	return nil
}

// answered makes c the backend, unless the relay has been aborted meanwhile.
func (r *relay) answered(c *net.TCPConn) *net.TCPConn {
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
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
