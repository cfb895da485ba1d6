package status

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
)

// clientShare is how much of the connections one client may have: strangers who hold all that they can get leave as
// much for a probe.
const clientShare shares.Percent = 50

// Conns bounds the connections of all HTTP servers together, so that strangers at a health check take no descriptor
// that a change, or a probe, needs. The oldest makes room for a new one: a probe is answered within a millisecond, and
// who is slow may come from any number of addresses. Its methods may be called from anywhere.
type Conns struct {
	most    int64
	refused atomic.Uint64

	mu   sync.Mutex   // guards the following
	open []*boundConn // the oldest first
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

// add counts a connection, and resets the oldest one that must make room for it: of its client, if that has its share,
// else of all.
func (c *Conns) add(b *boundConn) {
	c.mu.Lock()
	free := c.most - int64(len(c.open))
	oldest := -1
	switch {
	case c.by[b.client] > 0 && !clientShare.Allows(c.by[b.client], 1, free):
		oldest = slices.IndexFunc(c.open, func(o *boundConn) bool { return o.client == b.client })
	case free <= 0:
		oldest = 0
	}
	var goes *boundConn
	if oldest >= 0 {
		goes = c.open[oldest]
		c.forget(goes)
		c.refused.Add(1)
	}
	c.open = append(c.open, b)
	c.by[b.client]++
	c.mu.Unlock()
	if goes != nil {
		if tcp, ok := goes.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // what it leaves in TIME_WAIT is memory, too
		}
		_ = goes.Conn.Close()
	}
}

// forget ends the count of a connection, if it counts. The caller holds c.mu.
func (c *Conns) forget(b *boundConn) {
	i := slices.Index(c.open, b)
	if i < 0 {
		return
	}
	c.open = slices.Delete(c.open, i, i+1)
	if c.by[b.client]--; c.by[b.client] == 0 {
		delete(c.by, b.client)
	}
}

// boundListener has its connections count.
type boundListener struct {
	net.Listener
	conns *Conns
}

// Accept returns the next connection, for which others make room.
func (l *boundListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b := &boundConn{Conn: conn, conns: l.conns, client: clientOf(conn)}
	l.conns.add(b)
	return b, nil
}

// clientOf returns the host of a client, by which it counts; all that have no address are one.
func clientOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return lb.HostOf(a.AddrPort().Addr())
	}
	return netip.Addr{}
}

// boundConn is a connection that counts until it is closed.
type boundConn struct {
	net.Conn
	conns  *Conns
	client netip.Addr
}

// Close closes the connection.
func (b *boundConn) Close() error {
	b.conns.mu.Lock()
	b.conns.forget(b)
	b.conns.mu.Unlock()
	return b.Conn.Close()
}
