package tcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"

	"github.com/sluice-lb/sluice/internal/counters"
	"github.com/sluice-lb/sluice/internal/proxyproto"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// goroutines serve connections where there are no loops.
type goroutines struct {
	count counts

	mu      sync.Mutex    // guards the following
	aborted bool          // every connection has been, and later ones are
	changed chan struct{} // closed with the next change of the table; nil: no client waits for it
	conns   map[*goroutineConn]struct{}
	claims  *session.Claims // made with the first listener
	ids     proxyproto.IDs
	running sync.WaitGroup
}

// nextTable returns a channel that is closed when the table changes.
func (g *goroutines) nextTable() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.changed
}

func (g *goroutines) tableChanged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// acceptor accepts on one address.
type acceptor struct {
	srv     *Server
	socket  *net.TCPListener
	steered bool
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
}

func (*goroutines) width(*Server) int { return 1 }

func (g *goroutines) bind(s *Server, addr netip.AddrPort, steered bool, _ int) (listening, netip.AddrPort, error) {
	network := "tcp4" // in this family only
	if addr.Addr().Is6() {
		network = "tcp6"
	}
	config := net.ListenConfig{KeepAliveConfig: probes}
	config.SetMultipathTCP(false)
	l, err := config.Listen(context.Background(), network, addr.String())
	if err != nil {
		return listening{}, addr, err
	}
	if g.claims == nil { // the caller holds s.mu, and the first connection comes after
		g.ids.Maker = rand.Uint64()
		claims := session.NewClaims(s.Shares, s.LB, 0)
		g.claims = &claims
	}
	a := &acceptor{srv: s, socket: l.(*net.TCPListener), steered: steered}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return listening{steered, []listener{a}}, addrPort(l.Addr()), nil
}

// probes is for both sides. A system that cannot have the times set sends probes by its own.
var probes = net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive}

// addrPort returns what clients know an address of the net package as.
func addrPort(a net.Addr) netip.AddrPort {
	p := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// Start starts accepting.
func (a *acceptor) Start() error {
	a.srv.goroutines.running.Go(a.run)
	return nil
}

// Close ends accepting. It resets what the system has completed and the Server has not accepted.
func (a *acceptor) Close() {
	a.cancel()
	_ = a.socket.Close() // nothing can be done about a listener that does not close
}

// run accepts until the listener is closed.
func (a *acceptor) run() {
	g := &a.srv.goroutines
	for {
		c, err := a.socket.AcceptTCP()
		switch {
		case err == nil:
			if !a.admit() {
				_ = c.SetLinger(0)
				_ = c.Close()
				return
			}
			g.serve(a, c)
			continue
		case errors.Is(err, net.ErrClosed):
			return
		case gone(err):
			continue
		case session.Shortage(err):
			g.count.PausedDescriptors.Add(1)
		default:
			g.count.AcceptErrors.Add(1)
		}
		if !wait(a.ctx, session.AcceptRetry) {
			return
		}
	}
}

// admit waits until the limits allow one more connection, and takes its descriptors and its place among the dials.
// Later ones wait in the backlog. False: the listener is closed.
func (a *acceptor) admit() bool {
	g, budget := &a.srv.goroutines, a.srv.Descriptors
	for g.count.Dialling.Add(1) > int64(a.srv.WithDefaults().MaxDials) {
		g.count.Dialling.Add(-1)
		g.count.PausedDials.Add(1)
		if !wait(a.ctx, session.AcceptRetry) {
			return false
		}
	}
	for !budget.Take(2) {
		g.count.PausedDescriptors.Add(1)
		if !wait(a.ctx, session.AcceptRetry) {
			g.count.Dialling.Add(-1)
			return false
		}
	}
	return true
}

// serve starts to relay for an accepted client.
func (g *goroutines) serve(a *acceptor, c *net.TCPConn) {
	g.count.Accepted.Add(1)
	g.count.Active.Add(1)
	ctx, cancel := context.WithCancel(context.Background())
	r := &goroutineConn{srv: a.srv, count: &g.count, cancel: cancel, client: c}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns == nil {
		g.conns = make(map[*goroutineConn]struct{})
	}
	g.conns[r] = struct{}{}
	if g.aborted { // by close, which has not seen this one
		r.abort()
	}
	g.running.Go(func() { // one more while the acceptor is one, so that no caller has stopped waiting
		defer cancel()
		r.run(ctx, a)
		g.ended(r)
	})
}

// ended deletes a connection, which has closed its sockets.
func (g *goroutines) ended(r *goroutineConn) {
	r.srv.Descriptors.Give(2)
	g.count.Active.Add(-1)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, r)
	g.claims.End(r.claim)
}

// claim claims what r takes. False: its client is refused.
func (g *goroutines) claim(r *goroutineConn, flow balancer.Flow) (ok bool) {
	config := r.srv.WithDefaults()
	free := config.Room(1, g.count.Dialling.Load())
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.claim, ok = g.claims.Admit(flow.Frontend, flow.Client, free, &g.count.Stats); ok {
		r.claim.Dial()
	}
	return ok
}

// announcement returns the PROXY header for the backend of a choice.
func (g *goroutines) announcement(flow *balancer.Flow, to balancer.Choice) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return announcement(nil, flow, to, &g.ids)
}

// dialled notes that the dial of r is over.
func (g *goroutines) dialled(r *goroutineConn) {
	g.count.Dialling.Add(-1)
	g.mu.Lock()
	defer g.mu.Unlock()
	r.claim.Dialled()
}

func (g *goroutines) addTo(sum *Stats) { counters.Add(sum, &g.count.stats) }

func (g *goroutines) drain(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		g.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abort returns when every goroutine has ended.
func (g *goroutines) abort() {
	g.mu.Lock()
	g.aborted = true
	for r := range g.conns {
		r.abort()
	}
	g.mu.Unlock()
	g.running.Wait()
}

// flow returns what the balancer needs of a client.
func (a *acceptor) flow(c *net.TCPConn) (balancer.Flow, error) {
	peer := addrPort(c.RemoteAddr())
	f := balancer.Flow{Client: peer.Addr(), ClientPort: peer.Port()}
	dst := addrPort(c.LocalAddr())
	if a.steered {
		raw, err := c.SyscallConn()
		if err != nil {
			return f, fmt.Errorf("use accepted socket: %w", err)
		}
		var asked error
		err = raw.Control(func(fd uintptr) { dst, asked = a.srv.OriginalDst(int(fd)) })
		if err != nil || asked != nil {
			return f, errors.Join(err, asked)
		}
	}
	f.Frontend = lb.Frontend{Protocol: lb.TCP, Addr: dst}
	return f, nil
}
