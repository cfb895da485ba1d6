package tcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/session"
)

// ErrServerClosed is returned by Listen after Shutdown or Close.
var ErrServerClosed = errors.New("tcp server is closed")

// keepAlive is the time before, and the interval between, keep-alive probes (tcp(7), TCP_KEEPIDLE and TCP_KEEPINTVL).
const keepAlive = 15 * time.Second

// Config is what holds for all connections. nil Loops, as it has to be on systems other than Linux: goroutines serve,
// with the same effect and at more cost (see the package comment).
type Config = session.Config

// Server accepts and relays TCP connections. Its exported fields are set before the first call and not changed
// afterwards. All methods may be called from any goroutine except those of Loops.
type Server struct {
	Config

	// Transparent says, of IPv4 and of IPv6, that what backends of this node send to clients' addresses comes to
	// sockets that have them (balancer.Balancer.Transparent). It may change at any time.
	Transparent [2]atomic.Bool

	mu        sync.Mutex // guards the following
	closed    bool
	listeners map[netip.AddrPort]listening

	loops      // serve, or where there are none
	goroutines goroutines
}

// listening is the sockets of an address: one for each loop, or one where descriptors are few, or more than loops
// after a hand-over.
type listening struct {
	steered bool // the frontend is the original destination, not the local address
	sockets []listener
}

// listener is a bound socket. Close is to be called also if Start has failed.
type listener interface {
	Start() error
	Close()
}

func (l listening) close() {
	for _, socket := range l.sockets {
		socket.Close()
	}
}

// engine moves the connections of a Server: by event loops, or by goroutines.
type engine interface {
	// width is how many sockets an address has at best. It is called with Server.mu held, as bind is.
	width(s *Server) int
	// bind opens so many sockets of an address, and returns the one in use.
	bind(s *Server, addr netip.AddrPort, steered bool, sockets int) (listening, netip.AddrPort, error)
	// tableChanged has held clients look whether there is a backend.
	tableChanged()
	// drain waits until every connection has ended.
	drain(ctx context.Context) error
	// abort resets every connection.
	abort()
	addTo(sum *Stats)
}

// Listen starts accepting on addr, which is what clients ask for, and returns the address in use: port 0 lets the
// system choose. On Linux an error wraps unix.EADDRINUSE if another process, or this Server, listens there already.
func (s *Server) Listen(addr netip.AddrPort) (netip.AddrPort, error) { return s.listen(addr, false) }

// ListenSteered is Listen for an address that traffic for any frontends is steered to (OriginalDst).
func (s *Server) ListenSteered(addr netip.AddrPort) (netip.AddrPort, error) {
	return s.listen(addr, true)
}

func (s *Server) listen(addr netip.AddrPort, steered bool) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return netip.AddrPort{}, ErrServerClosed
	}
	got, err := s.open(addr, steered)
	if err != nil {
		err = fmt.Errorf("listen on TCP %s: %w", addr, err)
	}
	return got, err
}

// open is listen for a caller who holds s.mu. What is steered serves all Services together, so that it is none's.
func (s *Server) open(addr netip.AddrPort, steered bool) (netip.AddrPort, error) {
	sockets := int64(s.engine().width(s))
	if !steered {
		var err error
		if sockets, err = s.Descriptors.Listen(sockets); err != nil {
			return netip.AddrPort{}, err
		}
	}
	// All are bound before the first one listens, so that either all do or none.
	l, got, err := s.engine().bind(s, addr, steered, int(sockets))
	for _, socket := range l.sockets {
		if err == nil {
			err = socket.Start()
		}
	}
	if err != nil {
		l.close()
		if !steered {
			s.Descriptors.Listening(-sockets)
		}
		return netip.AddrPort{}, err
	}
	s.add(got, l)
	return got, nil
}

// stop closes the sockets of an address.
func (s *Server) stop(l listening) {
	l.close()
	if !l.steered {
		s.Descriptors.Listening(-int64(len(l.sockets)))
	}
}

// add adds what listens on an address. The caller holds s.mu.
func (s *Server) add(addr netip.AddrPort, l listening) {
	if s.listeners == nil {
		s.listeners = make(map[netip.AddrPort]listening)
	}
	s.listeners[addr] = l
}

// TableChanged has the clients that are held (lb.Policies.Hold) go on if there are backends for them now. It does not
// wait for them.
func (s *Server) TableChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine().tableChanged()
}

// Steered returns the addresses of ListenSteered, in no order.
func (s *Server) Steered() (out []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr, l := range s.listeners {
		if l.steered {
			out = append(out, addr)
		}
	}
	return out
}

// Unlisten stops accepting on an address that Listen returned; unknown ones are ignored. With Loops, connections that
// the kernel has completed are still accepted; established ones go on.
func (s *Server) Unlisten(addr netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop(s.listeners[addr])
	delete(s.listeners, addr)
}

// Shutdown stops accepting and waits until every connection has ended. When ctx ends first, the rest is reset, and the
// error says how many they were.
func (s *Server) Shutdown(ctx context.Context) error {
	defer s.Close()
	s.stopListening()
	if err := s.engine().drain(ctx); err != nil {
		return fmt.Errorf("drain connections: %d reset: %w", s.Stats().Active, err)
	}
	return nil
}

// Close stops accepting and resets every connection. It may be called more than once, also while Shutdown waits.
func (s *Server) Close() {
	s.stopListening()
	s.engine().abort()
}

func (s *Server) stopListening() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, l := range s.listeners {
		s.stop(l)
	}
	clear(s.listeners)
}

// Stats returns the sum over all loops.
func (s *Server) Stats() (sum Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine().addTo(&sum)
	return sum
}
