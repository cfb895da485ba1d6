package engine

import (
	"cmp"
	"time"

	"github.com/sluice-lb/sluice/internal/session"
)

// Config is what a Server lets its user set. MaxDials and Descriptors are for the socket engine: the packet engine has
// a few descriptors for all associations.
type Config struct {
	session.Config

	// MaxAssociations bounds the associations of the packet engine, those included
	// that have just ended or are not established. Every loop has an equal share.
	// When a share is used up the oldest that has ended makes room, or else the
	// oldest that is not established. 0: 65,536.
	MaxAssociations int

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
	c.Config = c.Config.WithDefaults()
	c.MaxAssociations = cmp.Or(c.MaxAssociations, 65536)
	c.SocketBuffer = cmp.Or(c.SocketBuffer, 4<<20)
	c.MaxStreams = min(cmp.Or(c.MaxStreams, 1024), 65535)
	c.MaxMessage = cmp.Or(c.MaxMessage, 1<<20)
	return &c
}
