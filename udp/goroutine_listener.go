package udp

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// maxDatagram is the most that one datagram carries (RFC 768: its length is 16 bits).
const maxDatagram = 65535

// errorPause is how long to wait after a receive that failed, so that a lasting error
// does not keep a core busy.
const errorPause = time.Millisecond

// goroutines serves flows where there are no loops: one goroutine receives for each
// frontend, one receives the answers of each flow.
//
// Locks are taken in the order mu, goListener.mu, drainMu.
type goroutines struct {
	count loopCounters

	mu        sync.Mutex // guards the following
	closed    bool
	listeners map[lb.Frontend]*goListener

	drainMu sync.Mutex // guards drained
	drained eventloop.Drain
}

// goListener is one frontend's socket, and the flows that came by it.
type goListener struct {
	srv      *Server
	frontend lb.Frontend
	socket   *net.UDPConn
	running  sync.WaitGroup
	stopped  chan struct{} // closed by stop

	mu      sync.Mutex // guards the following, and the flows
	closed  bool
	flows   map[netip.AddrPort]*goFlow // by client
	recency list.List                  // of *goFlow, also those replaced in the map; the most recently active first
}

// network returns the name of UDP in one family only.
func network(addr netip.Addr) string {
	if addr.Is6() {
		return "udp6"
	}
	return "udp4"
}

func (g *goroutines) listen(s *Server, f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.draining() {
		return netip.AddrPort{}, ErrServerClosed
	}
	if _, ok := g.listeners[f]; ok {
		return netip.AddrPort{}, errListening
	}
	conn, err := net.ListenUDP(network(addr.Addr()), net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return netip.AddrPort{}, err
	}
	_ = conn.SetReadBuffer(s.socketBuffer()) // a smaller one serves, too
	_ = conn.SetWriteBuffer(s.socketBuffer())
	if g.listeners == nil {
		g.listeners = make(map[lb.Frontend]*goListener)
	}
	ln := &goListener{srv: s, frontend: f, socket: conn, stopped: make(chan struct{}),
		flows: make(map[netip.AddrPort]*goFlow)}
	g.listeners[f] = ln
	ln.running.Go(ln.run)
	local := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), nil
}

func (g *goroutines) unlisten(f lb.Frontend) {
	g.mu.Lock()
	ln := g.listeners[f]
	delete(g.listeners, f)
	g.mu.Unlock()
	if ln != nil {
		ln.stop()
	}
}

func (g *goroutines) tableChanged(s *Server) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, table := eventloop.Now(), s.LB.Table()
	for _, ln := range g.listeners {
		ln.mu.Lock()
		for e := ln.recency.Front(); e != nil; {
			f := e.Value.(*goFlow)
			e = e.Next() // f may go to the end of the list, where leaving again does nothing
			if f.stale(table, ln.frontend) {
				f.leave(now)
			}
		}
		ln.mu.Unlock()
	}
}

func (g *goroutines) drain(ctx context.Context) error {
	g.drainMu.Lock()
	g.drained.Start(g.count.Active.Load() == 0)
	drained := g.drained.Done()
	g.drainMu.Unlock()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// draining reports whether new clients are refused.
func (g *goroutines) draining() bool {
	g.drainMu.Lock()
	defer g.drainMu.Unlock()
	return g.drained.Started()
}

// checkDrained ends Shutdown after the last flow.
func (g *goroutines) checkDrained() {
	g.drainMu.Lock()
	defer g.drainMu.Unlock()
	g.drained.Check(g.count.Active.Load() == 0)
}

// close returns when every goroutine has ended.
func (g *goroutines) close() {
	g.mu.Lock()
	g.closed = true
	listeners := g.listeners
	g.listeners = nil
	g.mu.Unlock()
	for _, ln := range listeners {
		ln.stop()
	}
	g.checkDrained()
}

func (g *goroutines) addTo(sum *Stats) { g.count.addTo(sum) }

// evictOldest ends the least recently active flow of all, or one that is leaving, to make
// room. False: there is none.
func (g *goroutines) evictOldest() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	var oldest *goFlow
	least := int64(0)
	for _, ln := range g.listeners {
		ln.mu.Lock()
		if e := ln.recency.Back(); e != nil {
			f := e.Value.(*goFlow)
			if age := f.age(); oldest == nil || age < least {
				oldest, least = f, age
			}
		}
		ln.mu.Unlock()
	}
	if oldest != nil && oldest.end() {
		g.count.Evicted.Add(1)
	}
	return oldest != nil
}

// stop closes the socket and every flow, and waits for their goroutines.
func (ln *goListener) stop() {
	ln.mu.Lock()
	ln.closed = true
	for ln.recency.Len() > 0 {
		ln.recency.Front().Value.(*goFlow).close()
	}
	ln.mu.Unlock()
	close(ln.stopped)
	_ = ln.socket.Close() // nothing can be done about a socket that does not close
	ln.running.Wait()
}

// run forwards what clients send until the socket is closed.
func (ln *goListener) run() {
	count := &ln.srv.plain.count
	buf := make([]byte, maxDatagram)
	for {
		n, client, err := ln.socket.ReadFromUDPAddrPort(buf)
		switch {
		case err == nil && client.Port() == 0:
			count.Malformed.Add(1)
		case err == nil:
			ln.forward(netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), buf[:n])
		case errors.Is(err, net.ErrClosed):
			return
		default:
			count.ReceiveErrors.Add(1)
			select {
			case <-ln.stopped:
			case <-time.After(errorPause):
			}
		}
	}
}

// forward sends one datagram of a client to the backend of its flow, which is made if need be.
func (ln *goListener) forward(client netip.AddrPort, p []byte) {
	g := &ln.srv.plain
	for range maxAttempts { // a flow may end between being found and being used
		now := eventloop.Now()
		f, known := ln.find(client, now)
		if f == nil {
			if !known && g.draining() {
				g.count.Draining.Add(1)
				return
			}
			var err error
			if f, err = ln.open(client, now); err != nil {
				g.count.reason(err).Add(1)
				return
			}
		}
		if f.send(p) {
			return
		}
	}
	g.count.Busy.Add(1)
}

// find returns the client's flow, if its backend is still to be used, and whether there
// is one at all.
func (ln *goListener) find(client netip.AddrPort, now int64) (live *goFlow, known bool) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	f := ln.flows[client]
	switch {
	case f == nil:
		return nil, false
	case !f.choice.Live():
		f.leave(now)
		return nil, true // a new one takes its place
	}
	f.active = now
	ln.recency.MoveToFront(f.place)
	return f, true
}

// open makes a flow. Only the listener's own goroutine calls it.
func (ln *goListener) open(client netip.AddrPort, now int64) (*goFlow, error) {
	g, budget := &ln.srv.plain, ln.srv.Descriptors
	choice, err := ln.srv.LB.Pick(lb.Flow{Frontend: ln.frontend, Client: client.Addr(), Now: now})
	if err != nil {
		return nil, err
	}
	ln.limit()
	if budget != nil && !budget.Take(1) && !(g.evictOldest() && budget.Take(1)) {
		choice.Done(nil) // nothing is known about the backend
		return nil, errNoDescriptor
	}
	f := &goFlow{ln: ln, client: client, route: route{active: now}}
	if err := f.connect(choice, now, true); err != nil {
		ln.srv.refund()
		return nil, err
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.closed {
		f.release()
		_ = f.conn.Close()
		ln.srv.refund()
		return nil, net.ErrClosed
	}
	ln.flows[client] = f
	f.place = ln.recency.PushFront(f)
	g.count.Created.Add(1)
	g.count.Active.Add(1)
	ln.running.Go(f.run)
	return f, nil
}

// limit makes room for one flow more within MaxFlows.
func (ln *goListener) limit() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.recency.Len() >= ln.srv.maxFlows() {
		ln.recency.Back().Value.(*goFlow).close()
		ln.srv.plain.count.Evicted.Add(1)
	}
}
