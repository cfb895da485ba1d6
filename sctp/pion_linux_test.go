package sctp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pion/logging"
	"github.com/pion/sctp"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/sctp/wire"
)

// pionStack is SCTP in user space on a host: pion's associations, which expect a
// net.Conn each, over the packets of one raw socket. An INIT to a port without a
// listener is answered with ABORT.
type pionStack struct {
	ip   netip.Addr
	conn *net.IPConn
	done sync.WaitGroup

	mu        sync.Mutex
	ways      map[way]*pionConn
	listeners map[uint16]chan peer
	nextPort  uint16
	closed    bool
}

// way is where an association's packets come from, and to which port.
type way struct {
	from netip.AddrPort
	to   uint16
}

func newPion(h *testbed.Host, ip netip.Addr) (*pionStack, error) {
	network := "ip4:132"
	if ip.Is6() {
		network = "ip6:132"
	}
	s := &pionStack{ip: ip, ways: make(map[way]*pionConn), listeners: make(map[uint16]chan peer), nextPort: 40000}
	err := h.Do(func() (err error) {
		s.conn, err = net.ListenIP(network, &net.IPAddr{IP: ip.AsSlice()})
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.conn.SetReadBuffer(8 << 20); err != nil {
		return nil, err
	}
	s.done.Go(s.receive)
	return s, nil
}

func (s *pionStack) close() {
	s.mu.Lock()
	s.closed = true
	ways := s.ways
	s.ways = nil
	s.mu.Unlock()
	_ = s.conn.Close()
	for _, c := range ways {
		_ = c.Close()
	}
	s.done.Wait()
}

func (s *pionStack) receive() {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := s.conn.ReadFromIP(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // of a packet that ICMP reported
		}
		b := append([]byte(nil), buf[:n]...)
		c, fault := wire.Parse(b)
		if fault != wire.Sound {
			fmt.Printf("fault %d in a packet from %v: %x\n", fault, from, b)
			continue
		}
		ip, _ := netip.AddrFromSlice(from.IP)
		w := way{netip.AddrPortFrom(ip.Unmap(), c.Source), c.Dest}
		s.mu.Lock()
		conn := s.ways[w]
		if c.Kinds&wire.KindInit != 0 && (conn == nil || conn.init != c.InitTag) && !s.closed {
			conn = s.accept(w, &c)
		}
		s.mu.Unlock()
		if conn != nil {
			select {
			case conn.in <- b:
			default: // as a full socket does
			}
		}
	}
}

// accept answers an INIT, with an association or an ABORT.
func (s *pionStack) accept(w way, c *wire.Content) *pionConn {
	accepted, ok := s.listeners[w.to]
	if !ok {
		b := wire.Abort(c.InitTag, false)
		wire.SetPorts(b, w.to, w.from.Port())
		_, _ = s.conn.WriteToIP(b, &net.IPAddr{IP: w.from.Addr().AsSlice()})
		return nil
	}
	conn := s.connect(w)
	conn.init = c.InitTag
	s.done.Go(func() {
		a, err := sctp.ServerWithOptions(pionOptions[sctp.ServerOption](conn)...)
		if err != nil {
			_ = conn.Close()
			return
		}
		accepted <- newPionPeer(a, conn)
	})
	return conn
}

// connect makes the net.Conn of an association. The caller holds s.mu.
func (s *pionStack) connect(w way) *pionConn {
	c := &pionConn{s: s, way: w, in: make(chan []byte, 4096), closed: make(chan struct{})}
	s.ways[w] = c
	return c
}

func (s *pionStack) listen(port uint16) (<-chan peer, error) {
	accepted := make(chan peer, 4096)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners[port] = accepted
	return accepted, nil
}

func (s *pionStack) unlisten(port uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, port)
}

// dial makes an association. from is the port to have, 0 for any.
func (s *pionStack) dial(ctx context.Context, to netip.AddrPort, from uint16) (peer, error) {
	s.mu.Lock()
	if from == 0 {
		s.nextPort++
		from = s.nextPort
	}
	conn := s.connect(way{to, from})
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	a, err := sctp.ClientWithOptions(pionOptions[sctp.ClientOption](conn)...)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return newPionPeer(a, conn), nil
}

// pionConn carries the packets of one association. pion has its own idea of ports,
// so that they are translated here.
type pionConn struct {
	s      *pionStack
	way    way
	init   uint32 // initiate tag of the INIT that made it, at a server
	in     chan []byte
	closed chan struct{}
	once   sync.Once
}

// pionOptions are those of a client or a server.
func pionOptions[O any](c *pionConn) (options []O) {
	for _, o := range []sctp.AssociationOption{
		sctp.WithNetConn(c), sctp.WithBlockWrite(true), sctp.WithMaxMessageSize(1 << 20), sctp.WithMaxReceiveBufferSize(4 << 20),
		sctp.WithLoggerFactory(&logging.DefaultLoggerFactory{DefaultLogLevel: logging.LogLevelDisabled}),
	} {
		options = append(options, o.(O))
	}
	return options
}

const pionPort = 5000

func (c *pionConn) Read(p []byte) (int, error) {
	select {
	case b := <-c.in:
		wire.SetPorts(b, pionPort, pionPort)
		return copy(p, b), nil
	case <-c.closed:
		return 0, io.EOF
	}
}

func (c *pionConn) Write(p []byte) (int, error) {
	b := append([]byte(nil), p...)
	wire.SetPorts(b, c.way.to, c.way.from.Port())
	if _, err := c.s.conn.WriteToIP(b, &net.IPAddr{IP: c.way.from.Addr().AsSlice()}); errors.Is(err, net.ErrClosed) {
		return 0, err
	}
	return len(p), nil // lost, as packets may be
}

func (c *pionConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.s.mu.Lock()
		if c.s.ways[c.way] == c {
			delete(c.s.ways, c.way)
		}
		c.s.mu.Unlock()
	})
	return nil
}

func (c *pionConn) LocalAddr() net.Addr              { return c.s.conn.LocalAddr() }
func (c *pionConn) RemoteAddr() net.Addr             { return net.TCPAddrFromAddrPort(c.way.from) }
func (c *pionConn) SetDeadline(time.Time) error      { return nil }
func (c *pionConn) SetReadDeadline(time.Time) error  { return nil }
func (c *pionConn) SetWriteDeadline(time.Time) error { return nil }

// pionPeer is one association. A goroutine a stream puts what arrives into one
// channel.
type pionPeer struct {
	a       *sctp.Association
	conn    *pionConn
	in      chan message
	readers sync.WaitGroup

	mu      sync.Mutex
	streams map[uint16]*sctp.Stream
}

func newPionPeer(a *sctp.Association, conn *pionConn) *pionPeer {
	p := &pionPeer{a: a, conn: conn, in: make(chan message, 1024), streams: make(map[uint16]*sctp.Stream)}
	p.readers.Go(func() {
		for {
			s, err := a.AcceptStream()
			if err != nil {
				return
			}
			p.adopt(s)
		}
	})
	go func() {
		p.readers.Wait()
		close(p.in)
	}()
	return p
}

func (p *pionPeer) adopt(s *sctp.Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.streams[s.StreamIdentifier()]; ok {
		return
	}
	p.streams[s.StreamIdentifier()] = s
	p.readers.Go(func() {
		buf := make([]byte, 1<<20)
		for {
			n, ppid, err := s.ReadSCTP(buf)
			if err != nil {
				return
			}
			m := message{stream: s.StreamIdentifier(), ppid: uint32(ppid), data: append([]byte(nil), buf[:n]...)}
			select {
			case p.in <- m:
				continue
			default:
			}
			select {
			case p.in <- m:
			case <-p.conn.closed:
				return
			}
		}
	})
}

func (p *pionPeer) send(m message) error {
	p.mu.Lock()
	s := p.streams[m.stream]
	p.mu.Unlock()
	if s == nil {
		var err error
		if s, err = p.a.OpenStream(m.stream, 0); err != nil {
			p.mu.Lock()
			s = p.streams[m.stream]
			p.mu.Unlock()
			if s == nil {
				return err
			}
		}
		p.adopt(s)
	}
	s.SetReliabilityParams(m.unordered, sctp.ReliabilityTypeReliable, 0)
	_, err := s.WriteSCTP(m.data, sctp.PayloadProtocolIdentifier(m.ppid))
	return err
}

func (p *pionPeer) receive() (message, error) {
	select {
	case m, ok := <-p.in:
		if !ok {
			return m, io.EOF
		}
		return m, nil
	case <-time.After(patience):
		return message{}, errPatience
	}
}

func (p *pionPeer) shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return p.a.Shutdown(ctx)
}

func (p *pionPeer) abort() { p.a.Abort("test") }

func (p *pionPeer) vanish() { _ = p.conn.Close() }

func (p *pionPeer) from() netip.AddrPort { return p.conn.way.from }
