package tcp

import (
	"math/rand/v2"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/proxyproto"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// shard is the part of a Server that lives on one loop.
type shard struct {
	session.Shard[*conn]
	srv    *Server
	fresh  *conn // the oldest connection that is not settled: all before it are; nil: there is none
	settle settleTimer
	spread spread
	count  counts
	ids    proxyproto.IDs
}

func newShard(s *Server, loop *eventloop.Loop) *shard {
	sh := &shard{srv: s, ids: proxyproto.IDs{Maker: rand.Uint64()}}
	config := s.WithDefaults()
	sh.Init(&config, loop, &sh.count.Stats)
	sh.ClientResets, sh.BackendResets = &sh.count.ClientResets, &sh.count.BackendResets
	sh.settle.sh = sh
	sh.spread.lasting = all
	if s.Descriptors != nil {
		// Set before the loop sees its first connection: Listener.Start orders the two.
		loop.Pipes.Budget = s.Descriptors
	}
	return sh
}

// serve starts a connection for an accepted client, which it owns from now on.
func (sh *shard) serve(client accepted) {
	fd, peer, ask := client.fd, client.peer, socket.Local
	if client.steered { // the frontend is the original destination, not the local address
		ask = sh.srv.OriginalDst
	}
	dst, err := ask(fd)
	if err != nil { // the client was not steered here, or has gone already
		sh.count.NoService.Add(1)
		sh.Refuse(fd)
		return
	}
	frontend := lb.Frontend{Protocol: lb.TCP, Addr: dst}
	claim, ok := sh.Admit(fd, frontend, peer.Addr())
	if !ok {
		return
	}
	c := sh.newConn(fd, -1)
	c.client.Writable, c.client.young = true, youth
	sh.Insert(c, claim)
	if sh.fresh == nil {
		sh.fresh = c
	}
	if !sh.settle.timer.Active() {
		sh.Loop.After(&sh.settle.timer, &sh.settle, settleAfter)
	}
	sh.Dial(c, balancer.Flow{Frontend: frontend, Client: peer.Addr(), ClientPort: peer.Port()})
}

// newConn returns a connection of a client's socket and of a backend's, or -1. It owns them from now on.
func (sh *shard) newConn(client, backend int) *conn {
	c := sh.Reuse()
	if c == nil {
		c = new(conn)
	}
	*c = conn{sh: sh}
	c.client.Side, c.backend.Side = session.NewSide(c, client), session.NewSide(c, backend)
	return c
}

// leave is called before c leaves its place in the list of connections.
func (sh *shard) leave(c *conn) {
	if !c.settled {
		sh.spread.lasted(false)
	}
	if sh.fresh == c {
		sh.fresh = c.Next()
	}
}

const (
	// settleAfter is how long a connection has to live before the kernel probes its backend. Short ones, which are
	// over by then, save three system calls.
	settleAfter = time.Second

	// settleBatch is how many connections are settled before the other descriptors of their loop are served.
	settleBatch = 64
)

// settleTimer runs while a connection is not settled.
type settleTimer struct {
	timer eventloop.Timer
	sh    *shard
}

// Expire settles the oldest connections that are not, and comes back soon if there are more.
func (t *settleTimer) Expire(*eventloop.Timer) {
	sh := t.sh
	for range settleBatch {
		if sh.fresh == nil {
			return
		}
		if !sh.fresh.settled {
			sh.fresh.settle()
			sh.spread.lasted(true)
		}
		sh.fresh = sh.fresh.Next()
	}
	sh.Loop.After(&t.timer, t, 0)
}
