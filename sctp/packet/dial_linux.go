package packet

import (
	"cmp"
	"math"
	"net/netip"

	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/sctp/wire"
)

// Ports of ours towards backends: Linux's own ephemeral range
// (ip_local_port_range, ip(7)).
const (
	firstPort = 32768
	lastPort  = 60999
)

// dial is what an association needs only until its backend has answered.
type dial struct {
	session.Ladder
	init []byte // the client's last INIT
	hops int    // that it may go on; 0: as many as the system allows
}

// accept starts an association for a client's INIT.
func (sock *rawSocket) accept(f lb.Frontend, d *received, c *wire.Content, now int64) {
	sh := sock.sh
	if sh.drain.Started() {
		sh.count.Draining.Add(1)
		return
	}
	if !sh.room() {
		sh.count.Full.Add(1)
		return
	}
	b := wire.Strip(d.sctp)
	if b == nil {
		sh.count.Malformed.Add(1)
		return
	}
	claim, ok := sh.admit(f, d.peer)
	if !ok {
		client := newSide(nil, netip.AddrPortFrom(d.peer, c.Source), netip.AddrPortFrom(d.local, c.Dest), d.scope)
		sh.logRefused(f, client.peer())
		sh.send(wire.Abort(c.InitTag, false), &client, 0)
		return
	}
	a := &assoc{sh: sh, born: now, active: now, claim: claim}
	a.client = newSide(a, netip.AddrPortFrom(d.peer, c.Source), netip.AddrPortFrom(d.local, c.Dest), d.scope)
	a.handshake.asked = c.InitTag
	a.dial = &dial{init: append([]byte(nil), b...), hops: d.left()}
	a.dial.Start(balancer.Flow{Frontend: f, Client: d.peer, ClientPort: c.Source})
	sh.sides[a.client.key] = &a.client
	sh.dialling.add(a)
	sh.enter(a)
	sh.count.Accepted.Add(1)
	sh.count.Active.Add(1)
	sh.count.Dialling.Add(1)
	a.dialNext()
}

// room makes room for one association more, and reports whether there is.
func (sh *shard) room() bool {
	if sh.held() < sh.limit {
		return true
	}
	oldest := cmp.Or(sh.over.Front(), sh.dialling.Front())
	if oldest == nil {
		return false
	}
	a := oldest.Value.(*assoc)
	if a.phase != ended {
		sh.count.Evicted.Add(1)
		a.finish(lb.Evicted)
	}
	a.remove()
	return true
}

// divisible is how many associations a shard must be allowed for them to be divided into shares.
const divisible = 256

// admit claims an association of a client. False, which is counted: it, or the Service, has its share already.
func (sh *shard) admit(f lb.Frontend, client netip.Addr) (session.Claim, bool) {
	free := session.Room{Conns: math.MaxInt32, Dials: math.MaxInt32} // the oldest dial makes room
	if sh.limit >= divisible {
		free.Conns = int64(sh.limit - sh.held())
	}
	return sh.claims.Admit(f, client, free, &sh.count.Stats)
}

// held returns how many associations there are, ended ones included.
func (sh *shard) held() int { return sh.dialling.Len() + sh.open.Len() + sh.over.Len() }

// dialNext asks one backend after the other until one is asked or none is left.
func (a *assoc) dialNext() {
	sh, d := a.sh, a.dial
	for {
		choice, timeout, err := d.Next(&sh.cfg.Config) // which refuses a client beyond a limit, as there is no queue
		if err != nil {
			if err == balancer.ErrFull {
				sh.cfg.LB.Queues().RefuseFull(d.Flow())
			}
			session.Refuse(&sh.count.Stats, err)
			a.abort(session.EndOf(err, a.silent))
			return
		}
		a.choice = choice
		err = a.connect()
		switch err {
		case nil:
			sh.count.Dials.Add(1)
			sh.send(d.init, &a.backend, d.hops)
			sh.loop.After(&a.timer, a, timeout)
			return
		case errNoPort:
			sh.count.Shortages.Add(1)
			err = nil // not the backend's fault
		default:
			sh.count.DialRefused.Add(1)
		}
		a.dialFailed(err)
	}
}

// dialFailed ends an attempt and remembers the backend as tried.
func (a *assoc) dialFailed(err error) {
	a.dial.Failed(a.choice)
	a.silent = err == errSilent
	a.leave(err)
}

// leave gives the backend up, if there is one.
func (a *assoc) leave(err error) {
	a.sh.loop.StopTimer(&a.timer)
	a.meter.Flush(a.choice)
	if err != nil {
		a.choice = a.dial.End(a.choice, err)
	}
	a.choice.Done(nil)
	a.choice = balancer.Choice{}
}

// connect makes the side to the chosen backend, unless it is the one that there is:
// a backend that is asked again is asked from the same port, so that it may be slow.
// The error is errNoPort, or that there is no way to it.
func (a *assoc) connect() error {
	sh, to := a.sh, a.choice.Backend()
	if a.backend.a != nil {
		if a.backend.peer() == to {
			return nil
		}
		delete(sh.sides, a.backend.key)
		a.backend = side{}
	}
	sock, err := sh.rawSocket(to.Addr().Is6())
	if err != nil {
		return err
	}
	local, err := socket.Source(sock.router, to)
	if err != nil {
		return err
	}
	port, ok := sh.port(to, local)
	if !ok {
		return errNoPort
	}
	a.backend = newSide(a, to, netip.AddrPortFrom(local, port), 0)
	sh.sides[a.backend.key] = &a.backend
	return nil
}

// port returns a port of ours for a side to a backend: one that is not in use
// between these addresses, and from which the answers come to this shard.
func (sh *shard) port(to netip.AddrPort, local netip.Addr) (uint16, bool) {
	key := newSide(nil, to, netip.AddrPortFrom(local, 0), 0).key
	for range lastPort - firstPort + 1 {
		if sh.ports++; sh.ports < firstPort || sh.ports > lastPort {
			sh.ports = firstPort
		}
		if sh.n > 1 && shareOf(to.Port(), sh.ports, sh.n) != sh.index {
			continue
		}
		key.localPort = sh.ports
		if _, used := sh.sides[key]; !used {
			return sh.ports, true
		}
	}
	return 0, false
}
