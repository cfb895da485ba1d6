package status

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/shares"
)

// clientShare is how much of the connections one client may have: strangers who hold all that they can get leave as
// much for a probe.
const clientShare shares.Percent = 50

// Conns bounds the connections of all HTTP servers together, so that strangers at a health check take no descriptor
// that a change, or a probe, needs. Its methods may be called from anywhere.
type Conns struct {
	most    int64
	refused atomic.Uint64

	mu   sync.Mutex // guards the following
	open int64
	by   map[netip.Addr]int64
}

// NewConns returns Conns for so many at most, beside so many file descriptors of the data path (0: not known).
func NewConns(descriptors int64) *Conns {
	const least, most = 8, 256
	c := &Conns{most: most, by: make(map[netip.Addr]int64)}
	if descriptors > 0 {
		c.most = max(least, min(most, descriptors/64)) // a part of the reserve, which is an eighth
	}
	return c
}

// Refused returns how many connections were reset since there were too many, or too many of their client.
func (c *Conns) Refused() uint64 { return c.refused.Load() }

// Listen opens a socket, as net.Listen does.
type Listen = func(network, addr string) (net.Listener, error)

// Bound returns what opens listeners as open does, whose connections count.
func (c *Conns) Bound(open Listen) Listen {
	return func(network, addr string) (net.Listener, error) {
		l, err := open(network, addr)
		if err != nil {
			return nil, err
		}
		return &boundListener{l, c}, nil
	}
}

// take counts a connection of a client. False: it is to be reset.
func (c *Conns) take(client netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !clientShare.Allows(c.by[client], 1, c.most-c.open) {
		c.refused.Add(1)
		return false
	}
	c.open++
	c.by[client]++
	return true
}

func (c *Conns) give(client netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if c.by[client]--; c.by[client] == 0 {
		delete(c.by, client)
	}
}

// boundListener resets the connections that are too many.
type boundListener struct {
	net.Listener
	conns *Conns
}

// Accept returns the next connection that is not too many.
func (l *boundListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(conn)
		if l.conns.take(client) {
			return &boundConn{Conn: conn, end: sync.OnceFunc(func() { l.conns.give(client) })}, nil
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // what it leaves in TIME_WAIT is memory, too
		}
		_ = conn.Close()
	}
}

// clientOf returns the address of a client; all that have none are one.
func clientOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// boundConn is a connection that counts until it is closed.
type boundConn struct {
	net.Conn
	end func()
}

// Close closes the connection.
func (c *boundConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}
