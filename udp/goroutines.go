package udp

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// maxDatagram is the most that one datagram carries (RFC 768: its length is 16 bits).
const maxDatagram = 65535

// errorPause is how long a receive that failed is waited after, so that whatever it is
// does not keep a core busy.
const errorPause = time.Millisecond

// goroutines serves flows where there are no loops: one goroutine receives for each
// frontend, one receives the answers of each flow.
//
// Locks are taken in the order goroutines.mu, front.mu, relay.mu.
type goroutines struct {
	count    counters
	draining atomic.Bool

	mu     sync.Mutex // guards the following
	closed bool
	fronts map[lb.Frontend]*front
	idle   chan struct{} // closed when the last flow has ended; nil unless Shutdown waits
}

// front is one frontend's socket, and the flows that came by it.
type front struct {
	srv      *Server
	frontend lb.Frontend
	socket   *net.UDPConn
	running  sync.WaitGroup
	stopped  chan struct{} // closed by stop

	mu      sync.Mutex // guards the following
	closed  bool
	flows   map[netip.AddrPort]*relay // by client
	recency list.List                 // of *relay, those included that were replaced in the map; the most recently active first
}

// network returns the name of UDP in one family only.
func network(addr netip.Addr) string {
	if addr.Is6() {
		return "udp6"
	}
	return "udp4"
}

// listen is Server.Listen.
func (g *goroutines) listen(s *Server, f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.draining.Load() {
		return netip.AddrPort{}, ErrServerClosed
	}
	if _, ok := g.fronts[f]; ok {
		return netip.AddrPort{}, fmt.Errorf("listen on UDP %s for %s: listening already", addr, f)
	}
	conn, err := net.ListenUDP(network(addr.Addr()), net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listen on UDP %s for %s: %w", addr, f, err)
	}
	_ = conn.SetReadBuffer(s.socketBuffer()) // less than asked for is no reason not to serve
	_ = conn.SetWriteBuffer(s.socketBuffer())
	if g.fronts == nil {
		g.fronts = make(map[lb.Frontend]*front)
	}
	ft := &front{srv: s, frontend: f, socket: conn, stopped: make(chan struct{}), flows: make(map[netip.AddrPort]*relay)}
	g.fronts[f] = ft
	ft.running.Go(ft.run)
	local := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), nil
}

// unlisten is Server.Unlisten.
func (g *goroutines) unlisten(f lb.Frontend) {
	g.mu.Lock()
	ft := g.fronts[f]
	delete(g.fronts, f)
	g.mu.Unlock()
	if ft != nil {
		ft.stop()
	}
}

// tableChanged is Server.TableChanged.
func (g *goroutines) tableChanged(s *Server) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, table := eventloop.Now(), s.LB.Table()
	for _, ft := range g.fronts {
		owner, _, ok := table.Lookup(ft.frontend)
		ft.mu.Lock()
		for e := ft.recency.Front(); e != nil; {
			r := e.Value.(*relay)
			e = e.Next() // r may go to the end of the list, and is let be the second time
			if !r.stays(owner.ID, ok) {
				r.leave(now)
			}
		}
		ft.mu.Unlock()
	}
}

// shutdown is Server.Shutdown.
func (g *goroutines) shutdown(ctx context.Context) error {
	g.draining.Store(true)
	g.mu.Lock()
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	defer g.close()
	g.checkIdle()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain flows: %d cut off: %w", g.count.active.Load(), ctx.Err())
	}
}

// checkIdle tells Shutdown that the last flow has ended.
func (g *goroutines) checkIdle() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle == nil || g.count.active.Load() > 0 {
		return
	}
	select {
	case <-g.idle:
	default:
		close(g.idle)
	}
}

// close is Server.Close. It returns when every goroutine has ended.
func (g *goroutines) close() {
	g.mu.Lock()
	g.closed = true
	fronts := g.fronts
	g.fronts = nil
	g.mu.Unlock()
	for _, ft := range fronts {
		ft.stop()
	}
	g.checkIdle()
}

// oldest returns the least recently active flow of all, or nil. One that is leaving
// comes before any other.
func (g *goroutines) oldest() (oldest *relay) {
	g.mu.Lock()
	defer g.mu.Unlock()
	least := int64(0)
	for _, ft := range g.fronts {
		ft.mu.Lock()
		if e := ft.recency.Back(); e != nil {
			r := e.Value.(*relay)
			if age := r.age(); oldest == nil || age < least {
				oldest, least = r, age
			}
		}
		ft.mu.Unlock()
	}
	return oldest
}

// evict ends a flow to make room. False: there is none.
func (g *goroutines) evict(r *relay) bool {
	if r == nil {
		return false
	}
	if r.end() {
		g.count.evicted.Add(1)
	}
	return true
}

// stop closes the socket and every flow, and waits for their goroutines.
func (ft *front) stop() {
	ft.mu.Lock()
	ft.closed = true
	var all []*relay
	for e := ft.recency.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(*relay))
	}
	ft.mu.Unlock()
	close(ft.stopped)
	_ = ft.socket.Close() // nothing can be done about a socket that does not close
	for _, r := range all {
		r.end()
	}
	ft.running.Wait()
}

// run forwards what clients send until the socket is closed.
func (ft *front) run() {
	count := &ft.srv.plain.count
	buf := make([]byte, maxDatagram)
	for {
		n, client, err := ft.socket.ReadFromUDPAddrPort(buf)
		switch {
		case err == nil && client.Port() == 0:
			count.malformed.Add(1)
		case err == nil:
			ft.forward(netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), buf[:n])
		case errors.Is(err, net.ErrClosed):
			return
		default:
			count.receiveErrors.Add(1)
			select {
			case <-ft.stopped:
			case <-time.After(errorPause):
			}
		}
	}
}

// forward sends one datagram of a client to the backend of its flow, which is made if need be.
func (ft *front) forward(client netip.AddrPort, p []byte) {
	for range maxAttempts { // a flow may end between being found and being used
		now := eventloop.Now()
		r, known := ft.find(client, now)
		if r == nil {
			var err error
			if !known && ft.srv.plain.draining.Load() {
				ft.srv.plain.count.draining.Add(1)
				return
			}
			if r, err = ft.open(client, now); err != nil {
				ft.srv.plain.count.reason(err).Add(1)
				return
			}
		}
		if r.send(p) {
			return
		}
	}
	ft.srv.plain.count.busy.Add(1)
}

// find returns the client's flow, if its backend is still to be used, and whether there
// is one at all.
func (ft *front) find(client netip.AddrPort, now int64) (live *relay, known bool) {
	ft.mu.Lock()
	defer ft.mu.Unlock()
	r := ft.flows[client]
	switch {
	case r == nil:
		return nil, false
	case !r.live():
		r.leave(now)
		return nil, true // a new one takes its place
	}
	r.active.Store(now)
	ft.recency.MoveToFront(r.place)
	return r, true
}

// open makes a flow. Only the front's own goroutine calls it.
func (ft *front) open(client netip.AddrPort, now int64) (*relay, error) {
	g := &ft.srv.plain
	choice, err := ft.pick(client.Addr(), now, nil)
	if err != nil {
		return nil, err
	}
	ft.mu.Lock()
	var oldest *relay
	if ft.recency.Len() >= ft.srv.maxFlows() {
		oldest = ft.recency.Back().Value.(*relay)
	}
	ft.mu.Unlock()
	g.evict(oldest)
	budget := ft.srv.Descriptors
	if budget != nil && !budget.Take(1) && !(g.evict(g.oldest()) && budget.Take(1)) {
		choice.Done(nil) // nothing is known about the backend
		return nil, errNoDescriptor
	}
	r := &relay{front: ft, client: client}
	r.active.Store(now)
	if err := r.connect(choice, now, true); err != nil {
		ft.refund()
		return nil, err
	}
	ft.mu.Lock()
	defer ft.mu.Unlock()
	if ft.closed {
		r.choice.Done(nil)
		_ = r.conn.Close()
		ft.refund()
		return nil, net.ErrClosed
	}
	ft.flows[client] = r
	r.place = ft.recency.PushFront(r)
	g.count.created.Add(1)
	g.count.active.Add(1)
	ft.running.Go(r.run)
	return r, nil
}

func (ft *front) pick(client netip.Addr, now int64, tried *lb.Tried) (lb.Choice, error) {
	return ft.srv.LB.Pick(lb.Flow{Frontend: ft.frontend, Client: client, Now: now, Tried: tried})
}

// refund gives one descriptor back to the budget.
func (ft *front) refund() {
	if ft.srv.Descriptors != nil {
		ft.srv.Descriptors.Give(1)
	}
}
