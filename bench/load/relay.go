package load

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Relay is the proxy that most Go programs would be, and kube-proxy's userspace mode
// was: a goroutine for each direction of a connection, with io.Copy, and one for each
// client that sends datagrams. It keeps half-closed connections open, as it should.
type Relay struct {
	timeout time.Duration
	wg      sync.WaitGroup

	mu     sync.Mutex
	open   map[io.Closer]struct{}
	closed bool
}

// NewRelay starts forwarding. The caller closes it.
func NewRelay(c RelayConfig) (*Relay, error) {
	r := &Relay{timeout: c.Timeout, open: make(map[io.Closer]struct{})}
	for _, f := range c.TCP {
		ln, err := net.Listen("tcp4", f.Listen)
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("relay TCP: %w", err)
		}
		r.keep(ln)
		r.wg.Go(func() { r.accept(ln, f.Backends) })
	}
	for _, f := range c.UDP {
		pc, err := net.ListenPacket("udp4", f.Listen)
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("relay UDP: %w", err)
		}
		r.keep(pc)
		r.wg.Go(func() { r.receive(pc.(*net.UDPConn), f.Backends) })
	}
	return r, nil
}

// Close ends everything and waits for it. It may be called more than once.
func (r *Relay) Close() {
	r.mu.Lock()
	r.closed = true
	for c := range r.open {
		c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// keep has Close close c, and does so at once if it has been called.
func (r *Relay) keep(c io.Closer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[c] = struct{}{}; r.closed {
		c.Close()
	}
}

// drop closes c.
func (r *Relay) drop(c io.Closer) {
	r.mu.Lock()
	delete(r.open, c)
	r.mu.Unlock()
	c.Close()
}

func (r *Relay) accept(ln net.Listener, backends []string) {
	for next := 0; ; next++ {
		client, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of file descriptors: no event reports free ones
			continue
		}
		r.keep(client)
		r.wg.Go(func() { r.connection(client, backends[next%len(backends)]) })
	}
}

func (r *Relay) connection(client net.Conn, to string) {
	defer r.drop(client)
	backend, err := net.DialTimeout("tcp4", to, 5*time.Second)
	if err != nil {
		return // the client sees the end
	}
	r.keep(backend)
	defer r.drop(backend)
	var other sync.WaitGroup
	other.Go(func() { half(backend, client) })
	half(client, backend)
	other.Wait()
}

// half copies one direction, and passes its end on.
func half(dst, src net.Conn) {
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close() // and with it the other direction
		src.Close()
		return
	}
	_ = dst.(*net.TCPConn).CloseWrite() // fails if the other side has gone already
}

// receive passes on what clients send, each by a socket and a goroutine of its own.
func (r *Relay) receive(pc *net.UDPConn, backends []string) {
	var mu sync.Mutex
	flows := make(map[netip.AddrPort]net.Conn) // guarded by mu
	buf := make([]byte, 64<<10)
	for next := 0; ; {
		n, from, err := pc.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an answer
		}
		mu.Lock()
		c := flows[from]
		mu.Unlock()
		if c == nil {
			if c, err = net.Dial("udp4", backends[next%len(backends)]); err != nil {
				continue
			}
			next++
			r.keep(c)
			mu.Lock()
			flows[from] = c
			mu.Unlock()
			r.wg.Go(func() {
				r.answers(c, pc, from)
				mu.Lock()
				delete(flows, from)
				mu.Unlock()
				r.drop(c)
			})
		}
		_, _ = c.Write(buf[:n]) // lost, as datagrams may be
		_ = c.SetDeadline(time.Now().Add(r.timeout))
	}
}

// answers passes a backend's datagrams on, until there are none for too long.
func (r *Relay) answers(c net.Conn, pc *net.UDPConn, to netip.AddrPort) {
	buf := make([]byte, 64<<10)
	for {
		_ = c.SetDeadline(time.Now().Add(r.timeout))
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		_, _ = pc.WriteToUDPAddrPort(buf[:n], to)
	}
}
