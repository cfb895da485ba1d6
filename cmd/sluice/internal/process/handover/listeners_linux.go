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

// Address is what a listener of HTTP was asked for. Several may ask for a port that the kernel chooses: Nth counts
// them.
type Address struct {
	Network, Addr string
	Nth           int
}

// Listeners are the sockets on which the program serves HTTP, so that they can be
// handed over. Those that the successor does not use are closed with the hand-over. The zero
// value is ready to use. All methods may be called by any goroutine.
type Listeners struct {
	mu     sync.Mutex
	all    map[Address]*listener
	paused chan struct{} // closed when the pause ends; nil without one
}

// listener is a socket that may still be another process's.
type listener struct {
	set    *Listeners
	at     Address
	closed chan struct{}
	once   sync.Once
	inner  *net.TCPListener // guarded by set.mu until it is there, then it stays
}

// retryEvery is how often a socket that is another program's is tried again.
const retryEvery = 5 * time.Second

// Pause has nothing accepted until Resume, so that no request is lost between two processes.
// Meanwhile Listen takes sockets that are in use: the process that has them is to hand them
// over.
func (l *Listeners) Pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = make(chan struct{})
	l.setDeadline(time.Now())
}

// Resume ends a pause, if there is one. Listeners whose sockets have not come, since they are
// another program's, try every 5 s to get them.
func (l *Listeners) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused != nil {
		l.setDeadline(time.Time{})
		close(l.paused)
		l.paused = nil
	}
}

// setDeadline ends what accepts at present, or lets it go on. The caller holds l.mu.
func (l *Listeners) setDeadline(at time.Time) {
	for _, ln := range l.all {
		if ln.inner != nil {
			_ = ln.inner.SetDeadline(at)
		}
	}
}

// Listen is net.Listen for TCP.
func (l *Listeners) Listen(network, addr string) (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := Address{Network: network, Addr: addr}
	_, port, _ := net.SplitHostPort(addr)
	anyPort := port == "0" || port == ""
	for l.all[at] != nil {
		if !anyPort {
			return nil, fmt.Errorf("listen on %s: %w", addr, syscall.EADDRINUSE)
		}
		at.Nth++
	}
	out := &listener{set: l, at: at, closed: make(chan struct{})}
	if anyPort && l.paused != nil {
		// The process before may have a port, which stays.
	} else if err := out.listen(); err != nil && (l.paused == nil || !errors.Is(err, syscall.EADDRINUSE)) {
		return nil, err
	}
	if l.all == nil {
		l.all = make(map[Address]*listener)
	}
	l.all[at] = out
	return out, nil
}

// list returns what is listened on, with descriptors that stay the listeners'.
func (l *Listeners) list() (out []httpSocket) {
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
		_ = raw.Control(func(fd uintptr) { out = append(out, httpSocket{at, int(fd)}) })
	}
	return out
}

// offer gives sockets of another process to the listeners that wait for them, and
// closes the others.
func (l *Listeners) offer(sockets []httpSocket) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, s := range sockets {
		f := os.NewFile(uintptr(s.FD), s.Addr)
		if ln := l.all[s.Address]; ln != nil && ln.inner == nil {
			inner, err := net.FileListener(f)
			var ok bool
			if ln.inner, ok = inner.(*net.TCPListener); !ok {
				errs = append(errs, fmt.Errorf("take over the HTTP listener %s: not a TCP listener: %w", s.Addr, err))
			}
		}
		_ = f.Close()
	}
	return errors.Join(errs...)
}

// listen opens the listener's socket. The caller holds set.mu.
func (ln *listener) listen() error {
	inner, err := net.Listen(ln.at.Network, ln.at.Addr)
	if err == nil {
		ln.inner = inner.(*net.TCPListener)
	}
	return err
}

// ready returns the socket, or what is to be awaited before it is asked for again.
func (ln *listener) ready() (inner *net.TCPListener, resumed <-chan struct{}, retry <-chan time.Time) {
	ln.set.mu.Lock()
	defer ln.set.mu.Unlock()
	switch {
	case ln.set.paused != nil:
		return nil, ln.set.paused, nil
	case ln.inner == nil && ln.listen() != nil:
		return nil, nil, time.After(retryEvery)
	}
	return ln.inner, nil, nil
}

// Accept waits until it may, and for a client.
func (ln *listener) Accept() (net.Conn, error) {
	for {
		inner, resumed, retry := ln.ready()
		if inner != nil {
			c, err := inner.Accept()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
			return c, err
		}
		select {
		case <-resumed:
		case <-retry:
		case <-ln.closed:
			return nil, net.ErrClosed
		}
	}
}

// Addr returns the address listened on, or none while it is another process's.
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
