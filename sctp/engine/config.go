package engine

import (
	"cmp"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
)

// Config is what a Server lets its user set. Loops and LB are needed; every other zero
// value has a default.
type Config struct {
	// Loops run the Server's associations. They must outlive it: Close the Server
	// first.
	Loops *eventloop.Group

	// LB chooses backends.
	LB *lb.Balancer

	// Descriptors bounds the sockets of all associations, two for each, in the
	// socket engine. nil: no bound. The packet engine has a few for all.
	Descriptors *eventloop.Budget

	// DialTimeouts is how long each attempt to reach a backend may take; its length
	// is the number of attempts. Empty: 250 ms, 500 ms, 1 s, 2 s.
	DialTimeouts []time.Duration

	// MaxAssociations bounds the associations of the packet engine, those included
	// that have just ended or are not established. Every loop has an equal share.
	// When a share is used up the oldest that has ended makes room, or else the
	// oldest that is not established. 0: 65,536.
	MaxAssociations int

	// MaxDials bounds the attempts in flight of each loop in the socket engine; more
	// clients wait in the backlog. 0: 4,096.
	MaxDials int

	// IdleTimeout is how long an association may pass nothing before both sides are
	// aborted. For the packet engine heartbeats pass (RFC 9260 section
	// 8.3; every 30 s by default), so that it drops endpoints that have vanished;
	// 0: 15 min. For the socket engine the kernel sends and answers them, and ends an
	// association whose peer is silent; 0: no limit. Negative: no limit.
	IdleTimeout time.Duration

	// MaxStreams bounds the streams of an association in the socket engine, each way;
	// within it the backend is asked for what the client asked for. The kernel reserves memory for each
	// at once. At most 65,535; 0: 1,024.
	MaxStreams int

	// MaxMessage bounds user messages in the socket engine, which takes them whole, in
	// bytes; one that is longer ends its association. 0: 1 MiB.
	MaxMessage int

	// SocketBuffer is how many bytes the kernel may queue at each raw socket, each way,
	// of the packet engine, its own overhead included (socket(7)). Without CAP_NET_ADMIN
	// it is capped at net.core.rmem_max and wmem_max. 0: 4 MiB.
	SocketBuffer int
}

// WithDefaults returns c with a value for each field that is zero, but IdleTimeout, of
// which each engine has its own.
func (c Config) WithDefaults() *Config {
	s := c.Session()
	c.DialTimeouts, c.MaxDials = s.DialTimeouts, int(s.MaxDials)
	c.MaxAssociations = cmp.Or(c.MaxAssociations, 65536)
	c.SocketBuffer = cmp.Or(c.SocketBuffer, 4<<20)
	c.MaxStreams = min(cmp.Or(c.MaxStreams, 1024), 65535)
	c.MaxMessage = cmp.Or(c.MaxMessage, 1<<20)
	return &c
}

// Session returns what associations are accepted and dialled by.
func (c *Config) Session() *session.Config {
	s := &session.Config{LB: c.LB, Descriptors: c.Descriptors, DialTimeouts: c.DialTimeouts,
		MaxDials: int64(c.MaxDials)}
	return s.WithDefaults()
}
