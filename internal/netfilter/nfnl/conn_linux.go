package nfnl

import (
	"errors"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Conn is a socket for many requests, by any goroutine, in the network namespace of the thread that opened it. The zero
// Conn opens one for each request, in that of the calling thread.
type Conn struct{ sockets map[int]*nl.SocketHandle }

// Open opens the socket.
func Open() (*Conn, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER) // to nothing
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err = errors.Join(s.SetSendTimeout(&nl.SocketTimeoutTv), s.SetReceiveTimeout(&nl.SocketTimeoutTv)); err != nil {
		s.Close()
		return nil, err
	}
	return &Conn{map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: s}}}, nil
}

// Close closes the socket.
func (c *Conn) Close() {
	for _, s := range c.sockets {
		s.Close()
	}
}
