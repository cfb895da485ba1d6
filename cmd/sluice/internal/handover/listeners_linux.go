package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Address is what a listener of HTTP was asked for.
type Address struct{ Network, Addr string }

// Listeners are the sockets on which the program serves HTTP, so that they can be
// handed over. Those that the successor does not use are closed with the hand-over. The zero
// value is ready to use. All methods may be called by any goroutine.
type Listeners struct {
	mu      sync.Mutex
	all     map[Address]*listener
	open    chan struct{} // closed when what is listened on may be accepted; nil: always
	resumed chan struct{} // closed when a pause ends; nil without one
}

// listener is a socket that may still be another process's.
type listener struct {
	set    *Listeners
	at     Address
	closed chan struct{}
	once   sync.Once
	inner  *net.TCPListener // guarded by set.mu until it is there, then it stays
}

// Await has Listen wait for sockets that are in use: the process that has them is
// to hand them over. Nothing is accepted until Open.
func (l *Listeners) Await() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

// Open ends Await. Listeners whose sockets have not come, since they are
// another program's, try every 5 s to get them.
func (l *Listeners) Open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open != nil {
		close(l.open)
		l.open = nil
	}
}

// Listen is net.Listen for TCP.
func (l *Listeners) Listen(network, addr string) (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := Address{network, addr}
	if l.all[at] != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, syscall.EADDRINUSE)
	}
	out := &listener{set: l, at: at, closed: make(chan struct{})}
	inner, err := net.Listen(network, addr)
	switch {
	case err == nil:
		out.set.got(out, inner.(*net.TCPListener))
	case l.open == nil || !errors.Is(err, syscall.EADDRINUSE):
		return nil, err
	}
	if l.all == nil {
		l.all = make(map[Address]*listener)
	}
	l.all[at] = out
	return out, nil
}

// got gives a listener its socket. The caller holds l.mu.
func (l *Listeners) got(to *listener, inner *net.TCPListener) {
	to.inner = inner
	if l.resumed != nil {
		_ = inner.SetDeadline(time.Now())
	}
}

// list returns what is listened on, with descriptors that stay the listeners'.
func (l *Listeners) list() (addrs []Address, fds []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, ln := range l.all {
		if ln.inner == nil {
			continue
		}
		raw, err := ln.inner.SyscallConn()
		if err != nil {
			continue // closed
		}
		if raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }) == nil {
			addrs = append(addrs, at)
		}
	}
	return addrs, fds
}

// offer gives sockets of another process to the listeners that wait for them, and
// closes the others.
func (l *Listeners) offer(addrs []Address, fds []int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for i, at := range addrs {
		f := os.NewFile(uintptr(fds[i]), at.Addr)
		if ln := l.all[at]; ln != nil && ln.inner == nil {
			inner, err := net.FileListener(f)
			stream, ok := inner.(*net.TCPListener)
			if ok {
				l.got(ln, stream)
			} else {
				errs = append(errs, fmt.Errorf("take over the HTTP listener %s: not a TCP listener: %w", at.Addr, err))
			}
		}
		_ = f.Close()
	}
	return errors.Join(errs...)
}

// pause has nothing accepted any more, so that no request is lost between two
// processes.
func (l *Listeners) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resumed = make(chan struct{})
	for _, ln := range l.all {
		if ln.inner != nil {
			_ = ln.inner.SetDeadline(time.Now())
		}
	}
}

// resume ends a pause, if there is one.
func (l *Listeners) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.resumed == nil {
		return
	}
	for _, ln := range l.all {
		if ln.inner != nil {
			_ = ln.inner.SetDeadline(time.Time{})
		}
	}
	close(l.resumed)
	l.resumed = nil
}

// Accept waits until it may, and for a client.
func (ln *listener) Accept() (net.Conn, error) {
	if gate := ln.set.gate(); gate != nil {
		select {
		case <-gate:
		case <-ln.closed:
			return nil, net.ErrClosed
		}
	}
	for !ln.have() {
		retry := time.NewTimer(retryEvery)
		select {
		case <-retry.C:
		case <-ln.closed:
			retry.Stop()
			return nil, net.ErrClosed
		}
	}
	for {
		c, err := ln.inner.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		ln.set.mu.Lock()
		resumed := ln.set.resumed
		ln.set.mu.Unlock()
		if resumed == nil {
			continue
		}
		select {
		case <-resumed:
		case <-ln.closed:
			return nil, net.ErrClosed
		}
	}
}

// retryEvery is how often a socket that is another program's is tried again.
const retryEvery = 5 * time.Second

// have reports whether the listener has its socket, which it tries to get.
func (ln *listener) have() bool {
	ln.set.mu.Lock()
	defer ln.set.mu.Unlock()
	if ln.inner == nil {
		inner, err := net.Listen(ln.at.Network, ln.at.Addr)
		if err != nil {
			return false
		}
		ln.set.got(ln, inner.(*net.TCPListener))
	}
	return true
}

func (l *Listeners) gate() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Addr returns the address listened on, or that was asked for while it is another process's.
func (ln *listener) Addr() net.Addr {
	ln.set.mu.Lock()
	defer ln.set.mu.Unlock()
	if ln.inner == nil {
		return &net.TCPAddr{}
	}
	return ln.inner.Addr()
}

// Close stops listening.
func (ln *listener) Close() (err error) {
	ln.once.Do(func() {
		close(ln.closed)
		ln.set.mu.Lock()
		defer ln.set.mu.Unlock()
		delete(ln.set.all, ln.at)
		if ln.inner != nil {
			err = ln.inner.Close()
		}
	})
	return err
}
