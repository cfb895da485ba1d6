package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

const (
	// maxDatagram is the most that one datagram carries (RFC 768: its length is 16 bits).
	maxDatagram = 65535

	// maxKept is the longest datagram that is kept to be sent again if it is refused: what
	// an IPv6 packet of 1,280 bytes carries (RFC 8200 section 5).
	maxKept = 1232

	// errorPause is how long to wait after a receive that failed, so that a lasting error
	// does not keep a core busy.
	errorPause = time.Millisecond
)

// errSelf means that a socket was connected to itself, so that no other has the port.
var errSelf = errors.New("no socket has the port of the endpoint")

// goroutines is a transport without loops: one goroutine receives for each frontend, one
// receives the answers of each flow. They hold the lock except while they read or write.
type goroutines struct {
	sh *shard
	mu sync.Mutex // guards the shard, its listeners and flows
}

// goListener is the socket of a listener.
type goListener struct {
	socket  *net.UDPConn
	running sync.WaitGroup // the goroutines of the listener and of its flows
	stopped chan struct{}  // closed by stop
}

// goFlow is the socket of a flow.
type goFlow struct {
	conn *net.UDPConn // connected to the backend; nil once the flow is closed
	last []byte       // the datagram sent last, if it is unanswered and short enough

	// busy is held from before a datagram is sent until it is counted, and while what was read
	// is handled, so that an answer comes after its question. It is taken before goroutines.mu.
	busy sync.Mutex
}

func newGoroutines(s *Server) *shard {
	sh := newShard(s, 1)
	sh.io = &goroutines{sh: sh}
	return sh
}

// network returns the name of UDP in one family only.
func network(addr netip.Addr) string {
	if addr.Is6() {
		return "udp6"
	}
	return "udp4"
}

func (g *goroutines) do(fn func()) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	fn()
	return nil
}

func (g *goroutines) post(fn func()) error { return g.do(fn) }

func (g *goroutines) walk() {
	for g.sh.walk() {
	}
}

func (g *goroutines) bind(ln *listener, addr netip.AddrPort, _ bool) (netip.AddrPort, error) {
	conn, err := net.ListenUDP(network(addr.Addr()), net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return netip.AddrPort{}, err
	}
	_ = conn.SetReadBuffer(g.sh.server.socketBuffer()) // a smaller one serves, too
	_ = conn.SetWriteBuffer(g.sh.server.socketBuffer())
	ln.socket, ln.stopped = conn, make(chan struct{})
	return unmap(conn.LocalAddr().(*net.UDPAddr).AddrPort()), nil
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func (g *goroutines) start(ln *listener) error {
	ln.running.Go(func() { g.serve(ln) })
	return nil
}

// stop returns when the listener's goroutines have ended.
func (g *goroutines) stop(ln *listener) {
	g.mu.Lock()
	close(ln.stopped)
	ln.closeFlows()
	g.mu.Unlock()
	_ = ln.socket.Close() // nothing can be done about a socket that does not close
	ln.running.Wait()
}

func (g *goroutines) leave(*listener) {} // no rules lead to a socket

func (g *goroutines) inherit(*flow, netip.AddrPort) (none loopFlow, ok bool) { return none, false }

func (g *goroutines) open(f *flow, _ netip.AddrPort) error {
	f.goFlow = new(goFlow)
	return nil
}

// connect makes a new socket. If no process has the backend's port, and it is on this host, the
// system may give the port to this very socket: that is a refusal.
func (g *goroutines) connect(f *flow, to netip.AddrPort, now int64) error {
	conn, err := net.DialUDP(network(to.Addr()), nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return err
	}
	if conn.LocalAddr().(*net.UDPAddr).AddrPort() == to {
		_ = conn.Close()
		return errSelf
	}
	reportRefusals(conn)
	_ = conn.SetReadBuffer(g.sh.server.socketBuffer())
	if f.conn != nil {
		_ = f.conn.Close() // and its reader goes on with the new one
	}
	f.conn = conn
	f.later(now, f.idle(now))
	return nil
}

func (g *goroutines) watch(f *flow) error {
	f.ln.running.Go(func() { g.read(f) })
	return nil
}

// after makes the reader look again after ns.
func (g *goroutines) after(f *flow, ns int64) {
	_ = f.conn.SetReadDeadline(time.Now().Add(time.Duration(ns)))
}

func (g *goroutines) close(f *flow) {
	if f.conn != nil {
		_ = f.conn.Close()
		f.conn = nil
	}
}

// serve forwards what clients send until the socket is closed.
func (g *goroutines) serve(ln *listener) {
	buf := make([]byte, maxDatagram)
	for {
		n, client, err := ln.socket.ReadFromUDPAddrPort(buf)
		switch {
		case err == nil && client.Port() == 0:
			g.sh.count.Malformed.Add(1)
		case err == nil:
			g.forward(ln, flowKey{client: unmap(client)}, buf[:n])
		case errors.Is(err, net.ErrClosed):
			return
		default:
			select {
			case <-ln.stopped:
			case <-time.After(errorPause):
			}
		}
	}
}

// forward sends one datagram of a client to the backend of its flow, and to another if that
// refuses.
func (g *goroutines) forward(ln *listener, key flowKey, p []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		select {
		case <-ln.stopped:
			return
		default:
		}
		now := eventloop.Now()
		f, dropped := ln.flow(&key, now)
		if f == nil {
			dropped.Add(1)
			return
		}
		conn, whole := f.conn, f.whole(p)
		g.mu.Unlock()
		f.busy.Lock()
		_, err := conn.Write(whole)
		if tooLong(err) { // it may be about an earlier datagram, reported by ICMP
			_, err = conn.Write(whole)
		}
		g.mu.Lock()
		f.busy.Unlock()
		switch {
		case err == nil:
			g.sent(f, p)
			f.keep(p)
			return
		case f.conn != conn: // the flow has ended, or is connected to another backend
		case g.local(err):
			return
		case !f.fail(err, now):
			g.sh.count.Unreachable.Add(1)
			return
		}
	}
}

// whole returns a datagram with the header that it goes with.
func (f *flow) whole(p []byte) []byte {
	if f.header == nil {
		return p
	}
	return slices.Concat(f.header, p)
}

// local counts a send that failed, and reports whether that was for a reason on this host.
func (g *goroutines) local(err error) bool {
	g.sh.count.SendErrors.Add(1)
	switch {
	case tooLong(err):
		g.sh.count.TooLong.Add(1)
	case ofHost(err):
		g.sh.count.Busy.Add(1)
	default:
		return false
	}
	return true
}

// sent counts a datagram to the backend.
func (g *goroutines) sent(f *flow, p []byte) {
	g.sh.count.DatagramsIn.Add(1)
	g.sh.count.BytesIn.Add(uint64(len(p)))
	f.moved(len(p), 0)
}

// keep remembers a datagram until there is an answer.
func (f *goFlow) keep(p []byte) {
	if len(p) > maxKept {
		f.last = nil
		return
	}
	if f.last == nil {
		f.last = make([]byte, 0, len(p)) // not nil, also for an empty one
	}
	f.last = append(f.last[:0], p...)
}

// resend sends the datagram that was not answered.
func (g *goroutines) resend(f *flow) {
	if f.last == nil {
		return
	}
	if _, err := f.conn.Write(f.whole(f.last)); err != nil {
		g.sh.count.SendErrors.Add(1) // if it was refused the next call says so
		return
	}
	g.sh.count.Resent.Add(1)
	g.sent(f, f.last)
}

// read passes the backend's answers on until the flow ends.
func (g *goroutines) read(f *flow) {
	buf := make([]byte, maxDatagram)
	g.mu.Lock()
	defer g.mu.Unlock()
	for f.conn != nil {
		conn := f.conn
		g.mu.Unlock()
		n, err := conn.Read(buf)
		f.busy.Lock()
		g.mu.Lock()
		now := eventloop.Now()
		switch {
		case err == nil:
			g.reply(f, buf[:n], now)
		case f.conn != conn: // closed, or connected anew
		case errors.Is(err, os.ErrDeadlineExceeded):
			f.expire(now, 0)
		case !tooLong(err) && !ofHost(err): // else forward handles it
			f.fail(err, now)
		}
		f.busy.Unlock()
	}
}

// reply sends an answer to the client.
func (g *goroutines) reply(f *flow, p []byte, now int64) {
	if f.conn != nil {
		f.answered(now)
	}
	f.last = nil
	g.mu.Unlock()
	_, err := f.ln.socket.WriteToUDPAddrPort(p, f.key.client)
	g.mu.Lock()
	switch {
	case err == nil:
		f.moved(0, len(p))
		g.sh.count.DatagramsOut.Add(1)
		g.sh.count.BytesOut.Add(uint64(len(p)))
	case !g.local(err): // no route to the client, or forbidden
		g.sh.count.Unreachable.Add(1)
	}
}
