package udp

import (
	"container/list"
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// maxKept is the longest datagram that is kept to be sent again if it is refused: what
// an IPv6 packet of 1,280 bytes carries (RFC 8200 section 5).
const maxKept = 1232

// errNoDescriptor means that there is no descriptor, port or memory for one more flow.
var errNoDescriptor = errors.New("no descriptor for a flow")

// errSelf means that a socket was connected to itself, so that no other has the port.
var errSelf = errors.New("no socket has the port of the backend")

// relay is what one client sends to one frontend, and the answers, without a loop.
//
// One whose backend is gone stays for a while to pass answers on: it is leaving.
type relay struct {
	front  *front
	client netip.AddrPort
	active atomic.Int64  // time of the last datagram, ns
	place  *list.Element // guarded by front.mu; nil once it has ended

	mu       sync.Mutex   // guards the following
	conn     *net.UDPConn // connected to the backend
	choice   lb.Choice    // not valid while leaving
	leaving  int64        // time to be gone by, ns; 0 while the backend is in the table
	ended    bool
	tried    *lb.Tried // backends that have refused since the last answer; nil at first
	attempts int       // how many
	last     []byte    // the datagram sent last, if it is unanswered and short enough
}

// live reports whether the backend may be sent to.
func (r *relay) live() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaving == 0 && r.choice.Live()
}

// stays reports whether the flow need not leave: its backend is in the table, and the
// frontend is its Service's.
func (r *relay) stays(owner lb.ID, served bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaving != 0 || served && r.choice.Live() && owner == r.choice.Service()
}

// age orders flows by who is to make room first.
func (r *relay) age() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leaving != 0 {
		return math.MinInt64
	}
	return r.active.Load()
}

// leave has the flow send nothing any more, since its backend is gone, and makes it the
// first to be evicted. Leaving twice is fine. The caller holds front.mu.
func (r *relay) leave(now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leaving != 0 || r.ended {
		return
	}
	r.choice.Done(nil)
	r.choice = lb.Choice{}
	r.leaving = now + linger
	r.front.recency.MoveToBack(r.place)
	_ = r.conn.SetReadDeadline(time.Now().Add(time.Duration(r.rest(now))))
	r.front.srv.plain.count.moved.Add(1)
}

// rest returns how long the flow has to live, in ns, if nothing more comes. The caller
// holds r.mu.
func (r *relay) rest(now int64) int64 {
	until := r.active.Load() + int64(r.front.srv.idleTimeout())
	if r.leaving != 0 {
		until = min(until, r.leaving)
	}
	return until - now
}

// send sends a datagram to the backend, and to another if that refuses. False: the
// flow has ended or is leaving, and the datagram is another's to send.
func (r *relay) send(p []byte) bool {
	taken, alive := r.sendOrFail(p)
	if !alive {
		r.end()
	}
	return taken
}

func (r *relay) sendOrFail(p []byte) (taken, alive bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := &r.front.srv.plain.count
	for {
		if r.ended || r.leaving != 0 {
			return false, true
		}
		_, err := r.conn.Write(p)
		if tooLong(err) { // it may be about an earlier datagram, reported by ICMP
			_, err = r.conn.Write(p)
		}
		if err == nil {
			count.datagramsIn.Add(1)
			count.bytesIn.Add(uint64(len(p)))
			r.keep(p)
			return true, true
		}
		count.sendErrors.Add(1)
		switch {
		case tooLong(err):
			count.tooLong.Add(1)
			return true, true
		case ofHost(err):
			count.busy.Add(1)
			return true, true
		case !r.fail(err):
			count.unreachable.Add(1)
			return true, false
		}
	}
}

// keep remembers a datagram until there is an answer. The caller holds r.mu.
func (r *relay) keep(p []byte) {
	if len(p) > maxKept {
		r.last = nil
		return
	}
	if r.last == nil {
		r.last = make([]byte, 0, len(p))
	}
	r.last = append(r.last[:0], p...)
}

// fail leaves the backend because of err, connects to another and sends it what was
// not answered. False: there is no other. The caller holds r.mu.
func (r *relay) fail(err error) bool {
	if r.leaving != 0 {
		return false
	}
	now := eventloop.Now()
	old := r.conn
	choice, err := r.next(r.choice, err, now)
	r.choice = lb.Choice{}
	if err != nil || r.connect(choice, now, false) != nil {
		return false
	}
	_ = old.Close() // and its reader goes on with the new one
	if r.last == nil {
		return true
	}
	count := &r.front.srv.plain.count
	if _, err := r.conn.Write(r.last); err != nil {
		count.sendErrors.Add(1) // if it was refused the next call says so
		return true
	}
	count.resent.Add(1)
	count.datagramsIn.Add(1)
	count.bytesIn.Add(uint64(len(r.last)))
	return true
}

// next gives c up because of err and returns another choice.
func (r *relay) next(c lb.Choice, err error, now int64) (lb.Choice, error) {
	r.front.srv.plain.count.refused.Add(1)
	c.Done(err)
	if r.attempts++; r.attempts >= maxAttempts {
		return lb.Choice{}, errTried
	}
	if r.tried == nil {
		r.tried = new(lb.Tried)
	}
	r.tried.Add(c)
	return r.front.pick(r.client.Addr(), now, r.tried)
}

// connect makes a socket that is connected to the backend of c, or to another if
// there is no way to it. If it fails there is no choice to be done with. The caller
// holds r.mu, or, to have other flows make room, nobody else knows r.
func (r *relay) connect(c lb.Choice, now int64, makeRoom bool) error {
	g := &r.front.srv.plain
	for {
		conn, err := dialUDP(c.Backend())
		switch {
		case err == nil:
			reportRefusals(conn)
			_ = conn.SetReadBuffer(r.front.srv.socketBuffer())
			_ = conn.SetReadDeadline(time.Now().Add(r.front.srv.idleTimeout()))
			r.conn, r.choice = conn, c
			return nil
		case !ofHost(err):
			if c, err = r.next(c, err, now); err != nil {
				return err
			}
		case !makeRoom || !g.evict(g.oldest()):
			c.Done(nil) // nothing is known about the backend
			return errNoDescriptor
		default:
			makeRoom = false // what it had is free now
		}
	}
}

// dialUDP returns a socket connected to a backend. If no process has the backend's port, and
// it is on this host, the system may give it to this very socket: that is a refusal.
func dialUDP(to netip.AddrPort) (*net.UDPConn, error) {
	conn, err := net.DialUDP(network(to.Addr()), nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return nil, err
	}
	if conn.LocalAddr().(*net.UDPAddr).AddrPort() == to {
		_ = conn.Close()
		return nil, errSelf
	}
	return conn, nil
}

// run passes the backend's answers on until the flow ends.
func (r *relay) run() {
	buf := make([]byte, maxDatagram)
	for {
		r.mu.Lock()
		conn, ended := r.conn, r.ended
		r.mu.Unlock()
		if ended {
			return
		}
		n, err := conn.Read(buf)
		switch {
		case err == nil:
			r.answered()
			r.reply(buf[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
			if r.expired() {
				r.end()
				return
			}
		case errors.Is(err, net.ErrClosed): // ended, or connected anew
		default:
			if !r.refused(conn, err) {
				r.end()
				return
			}
		}
	}
}

// answered notes that the backend is there.
func (r *relay) answered() {
	ft := r.front
	ft.mu.Lock()
	defer ft.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active.Store(eventloop.Now())
	r.attempts, r.tried, r.last = 0, nil, nil
	if r.place != nil && r.leaving == 0 {
		ft.recency.MoveToFront(r.place)
	}
}

// reply sends an answer to the client.
func (r *relay) reply(p []byte) {
	count := &r.front.srv.plain.count
	_, err := r.front.socket.WriteToUDPAddrPort(p, r.client)
	if err == nil {
		count.datagramsOut.Add(1)
		count.bytesOut.Add(uint64(len(p)))
		return
	}
	count.sendErrors.Add(1)
	switch {
	case tooLong(err):
		count.tooLong.Add(1)
	case ofHost(err):
		count.busy.Add(1)
	default: // no route to the client, or forbidden
		count.unreachable.Add(1)
	}
}

// refused handles an error that the backend's host has sent. False: the flow is to end.
func (r *relay) refused(conn *net.UDPConn, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.conn != conn {
		return true // what sends has noticed it, too
	}
	return tooLong(err) || ofHost(err) || r.fail(err)
}

// expired reports whether the flow's time is over. If not it is given the rest of it.
func (r *relay) expired() bool {
	r.front.mu.Lock() // so that nobody finds the flow and uses it meanwhile
	defer r.front.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	if rest := r.rest(eventloop.Now()); rest > 0 {
		_ = r.conn.SetReadDeadline(time.Now().Add(time.Duration(rest)))
		return false
	}
	if r.leaving == 0 {
		r.front.srv.plain.count.expired.Add(1)
	}
	if r.front.flows[r.client] == r {
		delete(r.front.flows, r.client)
	}
	return true
}

// end closes the flow. False: it has ended before.
func (r *relay) end() bool {
	ft := r.front
	ft.mu.Lock()
	if r.place == nil {
		ft.mu.Unlock()
		return false
	}
	ft.recency.Remove(r.place)
	r.place = nil
	if ft.flows[r.client] == r {
		delete(ft.flows, r.client)
	}
	r.mu.Lock()
	r.ended = true
	r.choice.Done(nil)
	r.choice = lb.Choice{}
	_ = r.conn.Close()
	r.mu.Unlock()
	ft.mu.Unlock()
	ft.refund()
	ft.srv.plain.count.active.Add(-1)
	ft.srv.plain.checkIdle()
	return true
}
