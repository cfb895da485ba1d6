package socket

import (
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

// shard is the part of the engine that lives on one loop.
type shard struct {
	session.Shard[*assoc]
	engine  *Engine
	next    int    // shard of the next association that a listener of this one accepts
	router  [2]int // sockets to ask for routes, one a family; -1: not opened
	stopped bool
	count   engine.Counters

	mu       sync.Mutex // guards the following
	accepted []accepted // by other loops, or begun anew, and not served yet
}

func newShard(e *Engine, loop *eventloop.Loop) *shard {
	sh := &shard{engine: e, router: [2]int{-1, -1}}
	sh.Init(&e.cfg.Config, loop, &sh.count.Stats)
	sh.ClientResets, sh.BackendResets = &sh.count.ClientAborts, &sh.count.BackendAborts
	return sh
}

// accepted is the association of a client that is not served yet.
type accepted struct {
	fd       int
	peer     netip.AddrPort
	frontend lb.Frontend
}

// handOut passes an accepted association to one loop after the other.
func (sh *shard) handOut(a accepted) {
	sh.next++
	to := sh.engine.shards[sh.next%len(sh.engine.shards)]
	if to == sh || to.post(a) != nil {
		sh.serve(a)
	}
}

// post makes the shard's loop serve an association. Any loop may call it.
func (sh *shard) post(a accepted) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	err := sh.Loop.Post(sh.servePosted)
	if err == nil {
		sh.accepted = append(sh.accepted, a)
	}
	return err
}

// servePosted serves what was posted.
func (sh *shard) servePosted() {
	sh.mu.Lock()
	all := sh.accepted
	sh.accepted = nil
	sh.mu.Unlock()
	for _, a := range all {
		sh.serve(a)
	}
}

// serve starts to relay an accepted association, whose socket it owns from now on.
func (sh *shard) serve(from accepted) {
	if sh.stopped {
		sh.Refuse(from.fd)
		return
	}
	claim, ok := sh.Admit(from.fd, from.frontend, from.peer.Addr())
	if !ok {
		return
	}
	a := sh.newAssoc(from.fd, -1)
	a.asked = from.frontend
	sh.Insert(a, claim)
	a.client.Writable = true
	_ = kernel.SetHeartbeats(from.fd, from.peer) // fails if the client has gone, which is seen soon
	var err error
	if a.streams, err = kernel.GetStatus(from.fd); err == nil {
		err = sh.Loop.Add(from.fd, &a.client)
	}
	if err != nil {
		a.client.Fail()
		return
	}
	sh.Dial(a, balancer.Flow{Frontend: from.frontend, Client: from.peer.Addr(), ClientPort: from.peer.Port()})
}

// newAssoc makes an association of a client's socket and of a backend's, or -1. It owns them from now on.
func (sh *shard) newAssoc(client, backend int) *assoc {
	a := sh.Reuse()
	if a == nil {
		a = new(assoc)
	}
	*a = assoc{sh: sh}
	a.client.Side, a.backend.Side = session.NewSide(a, client), session.NewSide(a, backend)
	return a
}

func (sh *shard) stop() {
	sh.stopped = true
	sh.AbortAll()
	for i, fd := range sh.router {
		if fd >= 0 {
			_ = unix.Close(fd)
			sh.router[i] = -1
		}
	}
}

// source returns the address of ours from which a backend is reached.
func (sh *shard) source(peer netip.AddrPort) (netip.Addr, error) {
	at := &sh.router[0]
	if peer.Addr().Is6() {
		at = &sh.router[1]
	}
	if *at < 0 {
		fd, err := socket.New(peer.Addr(), unix.SOCK_DGRAM, 0)
		if err != nil {
			return netip.Addr{}, err
		}
		*at = fd
	}
	return socket.Source(*at, peer)
}
