package udp

import (
	"container/list"
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// maxKept is the longest datagram that is kept to be sent again if it is refused: what
// an IPv6 packet of 1,280 bytes carries (RFC 8200 section 5).
const maxKept = 1232

var (
	// errNoDescriptor means that there is no descriptor, port or memory for one more flow.
	errNoDescriptor = errors.New("no descriptor for a flow")

	// errSelf means that a socket was connected to itself, so that no other has the port.
	errSelf = errors.New("no socket has the port of the backend")
)

// goFlow is what one client sends to one frontend, and the answers, without a loop.
//
// One whose backend is gone stays for a while to pass answers on: it is leaving.
type goFlow struct {
	ln     *goListener
	client netip.AddrPort

	// All below is guarded by ln.mu.

	place *list.Element // nil once it has ended
	conn  *net.UDPConn  // connected to the backend
	last  []byte        // the datagram sent last, if it is unanswered and short enough
	route
}

// age orders flows for eviction, those that are leaving first. The caller holds ln.mu.
func (f *goFlow) age() int64 {
	if f.leaving != 0 {
		return math.MinInt64
	}
	return f.active
}

// leave makes the flow send nothing any more, since its backend is gone, and the
// first to be evicted. Leaving twice is fine. The caller holds ln.mu.
func (f *goFlow) leave(now int64) {
	if f.leaving != 0 {
		return
	}
	f.release()
	f.leaving = now + linger
	f.ln.recency.MoveToBack(f.place)
	f.setDeadline(now)
	f.ln.srv.plain.count.Moved.Add(1)
}

// setDeadline makes the reader look again when the flow's time is over.
func (f *goFlow) setDeadline(now int64) {
	_ = f.conn.SetReadDeadline(time.Now().Add(time.Duration(f.rest(now, f.ln.srv))))
}

// send sends a datagram to the backend, and to another if that refuses. False: the
// flow has ended or is leaving, and the datagram is another's to send.
func (f *goFlow) send(p []byte) bool {
	f.ln.mu.Lock()
	defer f.ln.mu.Unlock()
	count := &f.ln.srv.plain.count
	for f.place != nil && f.leaving == 0 {
		_, err := f.conn.Write(p)
		if tooLong(err) { // it may be about an earlier datagram, reported by ICMP
			_, err = f.conn.Write(p)
		}
		if err == nil {
			f.sent(p)
			f.keep(p)
			return true
		}
		count.SendErrors.Add(1)
		switch {
		case tooLong(err):
			count.TooLong.Add(1)
			return true
		case ofHost(err):
			count.Busy.Add(1)
			return true
		case !f.fail(err):
			count.Unreachable.Add(1)
			return true
		}
	}
	return false
}

// sent counts a datagram to the backend. The caller holds ln.mu.
func (f *goFlow) sent(p []byte) {
	count := &f.ln.srv.plain.count
	count.DatagramsIn.Add(1)
	count.BytesIn.Add(uint64(len(p)))
	f.meter.Add(f.choice, len(p), 0)
}

// keep remembers a datagram until there is an answer. The caller holds ln.mu.
func (f *goFlow) keep(p []byte) {
	if len(p) > maxKept {
		f.last = nil
		return
	}
	if f.last == nil {
		f.last = make([]byte, 0, len(p))
	}
	f.last = append(f.last[:0], p...)
}

// fail leaves the backend because of err, connects to another and sends it what was
// not answered. False: there is no other, and the flow is closed. The caller holds ln.mu.
func (f *goFlow) fail(err error) bool {
	if f.leaving != 0 {
		f.close()
		return false
	}
	now, old := eventloop.Now(), f.conn
	c, err := f.another(f.choice, err, now)
	f.choice = lb.Choice{}
	if err != nil || f.connect(c, now, false) != nil {
		f.close()
		return false
	}
	_ = old.Close() // and its reader goes on with the new one
	if f.last == nil {
		return true
	}
	count := &f.ln.srv.plain.count
	if _, err := f.conn.Write(f.last); err != nil {
		count.SendErrors.Add(1) // if it was refused the next call says so
		return true
	}
	count.Resent.Add(1)
	f.sent(f.last)
	return true
}

// another gives c up because of err and returns another choice.
func (f *goFlow) another(c lb.Choice, err error, now int64) (lb.Choice, error) {
	f.ln.srv.plain.count.Refused.Add(1)
	return f.next(f.ln.srv.LB, lb.Flow{Frontend: f.ln.frontend, Client: f.client.Addr(), Now: now}, c, err)
}

// connect makes a socket that is connected to the backend of c, or to another if
// there is no path to it. If it fails there is no choice to be done with. The caller
// holds ln.mu, or, so that other flows can make room, no other goroutine knows f.
func (f *goFlow) connect(c lb.Choice, now int64, makeRoom bool) error {
	srv := f.ln.srv
	for {
		conn, err := dialUDP(c.Backend())
		switch {
		case err == nil:
			reportRefusals(conn)
			_ = conn.SetReadBuffer(srv.socketBuffer())
			_ = conn.SetReadDeadline(time.Now().Add(srv.idleTimeout()))
			f.conn, f.choice = conn, c
			return nil
		case !ofHost(err):
			if c, err = f.another(c, err, now); err != nil {
				return err
			}
		case !makeRoom || !srv.plain.evictOldest():
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
func (f *goFlow) run() {
	buf := make([]byte, maxDatagram)
	for {
		f.ln.mu.Lock()
		conn, ended := f.conn, f.place == nil
		f.ln.mu.Unlock()
		if ended {
			return
		}
		n, err := conn.Read(buf)
		switch {
		case err == nil:
			f.reply(buf[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
			f.expire()
		case errors.Is(err, net.ErrClosed): // ended, or connected anew
		default:
			f.refused(conn, err)
		}
	}
}

// reply sends an answer to the client.
func (f *goFlow) reply(p []byte) {
	ln := f.ln
	ln.mu.Lock()
	f.active = eventloop.Now()
	f.answered()
	f.last = nil
	if f.place != nil && f.leaving == 0 {
		ln.recency.MoveToFront(f.place)
	}
	ln.mu.Unlock()
	count := &ln.srv.plain.count
	if _, err := ln.socket.WriteToUDPAddrPort(p, f.client); err != nil {
		count.SendErrors.Add(1)
		switch {
		case tooLong(err):
			count.TooLong.Add(1)
		case ofHost(err):
			count.Busy.Add(1)
		default: // no route to the client, or forbidden
			count.Unreachable.Add(1)
		}
		return
	}
	ln.mu.Lock()
	f.meter.Add(f.choice, 0, len(p))
	ln.mu.Unlock()
	count.DatagramsOut.Add(1)
	count.BytesOut.Add(uint64(len(p)))
}

// refused handles an error that the backend's host has sent.
func (f *goFlow) refused(conn *net.UDPConn, err error) {
	f.ln.mu.Lock()
	defer f.ln.mu.Unlock()
	if f.place != nil && f.conn == conn && !tooLong(err) && !ofHost(err) { // else send has handled it
		f.fail(err)
	}
}

// expire closes the flow if its time is over. If not it is given the rest of it.
func (f *goFlow) expire() {
	f.ln.mu.Lock()
	defer f.ln.mu.Unlock()
	if f.place == nil {
		return
	}
	if now := eventloop.Now(); f.rest(now, f.ln.srv) > 0 {
		f.setDeadline(now)
		return
	}
	if f.leaving == 0 {
		f.ln.srv.plain.count.Expired.Add(1)
	}
	f.close()
}

// end closes the flow. False: it has ended before.
func (f *goFlow) end() bool {
	f.ln.mu.Lock()
	defer f.ln.mu.Unlock()
	if f.place == nil {
		return false
	}
	f.close()
	return true
}

// close closes a flow that has not ended. The caller holds ln.mu.
func (f *goFlow) close() {
	ln := f.ln
	ln.recency.Remove(f.place)
	f.place = nil
	if ln.flows[f.client] == f {
		delete(ln.flows, f.client)
	}
	f.release()
	_ = f.conn.Close()
	ln.srv.refund()
	ln.srv.plain.count.Active.Add(-1)
	ln.srv.plain.checkDrained()
}
