package udp

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// linger is how long a backend that is gone may answer what it was asked before, unless the
// flow is idle sooner.
const linger = int64(time.Second)

// errNoDescriptor means that the budget of descriptors does not allow one more flow.
var errNoDescriptor = errors.New("no descriptor for a flow")

// listener is one frontend's socket in one shard, and the flows that came by it.
type listener struct {
	shard    *shard
	frontend lb.Frontend
	flows    map[flowKey]*flow // made by the first flow; many frontends never see one
	recency  order             // flows, those included that were replaced in the map

	loopListener // of the platform
	goListener
}

// flowKey identifies a flow of a frontend.
type flowKey struct {
	client netip.AddrPort
	local  netip.Addr // the address that was asked; without loops it is not known
	scope  uint32     // interface of a link-local client, which is known there only (RFC 4007)
}

// flow is what one client sends to one frontend, and the answers.
//
// A flow whose backend is gone stays for a while to pass answers on: it is leaving.
// It stays in the map, for the client to be known, until the client's next flow
// takes its place.
type flow struct {
	ln  *listener
	key flowKey
	route
	links [orders]link

	loopFlow // of the platform
	*goFlow  // nil with loops
}

// newListener makes the listener of a frontend, without a socket.
func (sh *shard) newListener(f lb.Frontend) *listener {
	return &listener{shard: sh, frontend: f, recency: order{by: byFrontend}}
}

// start begins to forward.
func (ln *listener) start() error {
	var started error
	err := ln.shard.io.do(func() { started = ln.shard.io.start(ln) })
	return errors.Join(err, started)
}

// closeFlows closes every flow.
func (ln *listener) closeFlows() {
	for ln.recency.first != nil {
		ln.recency.first.close()
	}
}

// flow returns the flow with this key, which is made if need be. nil: there is
// none, and the datagrams count as dropped at the counter returned.
func (ln *listener) flow(key *flowKey, now int64) (*flow, *atomic.Uint64) {
	sh := ln.shard
	switch f := ln.flows[*key]; {
	case f != nil && f.choice.Live():
		f.touch(now)
		return f, nil
	case f != nil:
		f.leave(now) // a new one takes its place
	case sh.drain.Started():
		return nil, &sh.count.Draining
	}
	f, err := ln.open(key, now)
	if err != nil {
		return nil, sh.count.reason(err)
	}
	return f, nil
}

// open makes a flow.
func (ln *listener) open(key *flowKey, now int64) (*flow, error) {
	sh := ln.shard
	c, err := sh.server.LB.Pick(lb.Flow{Frontend: ln.frontend, Client: key.client.Addr(), Now: now})
	if err != nil {
		return nil, err
	}
	if ln.recency.len >= sh.share {
		sh.evict(&ln.recency)
	}
	if !sh.takeDescriptor() {
		c.Done(nil) // nothing is known about the backend
		return nil, errNoDescriptor
	}
	f := &flow{ln: ln, key: *key, route: route{active: now}}
	family := c.Backend().Addr()
	if err = sh.io.open(f, family); err != nil && sh.evict(&sh.recency) {
		err = sh.io.open(f, family)
	}
	if err != nil {
		c.Done(nil)
		sh.giveDescriptor()
		return nil, err
	}
	if err = f.connect(c, now); err == nil {
		err = sh.io.watch(f)
	}
	if err != nil {
		f.release()
		sh.io.close(f)
		sh.giveDescriptor()
		return nil, err
	}
	ln.keep(f)
	sh.io.after(f, int64(sh.server.idleTimeout()))
	sh.count.Created.Add(1)
	return f, nil
}

// keep puts a new flow into the map, unless another has its place, and into the orders.
func (ln *listener) keep(f *flow) {
	if ln.flows == nil {
		ln.flows = make(map[flowKey]*flow)
	}
	if there := ln.flows[f.key]; there == nil || there.leaving != 0 {
		ln.flows[f.key] = f
	}
	ln.recency.pushFront(f)
	ln.shard.recency.pushFront(f)
	ln.shard.ages.pushFront(f)
	ln.shard.count.Active.Add(1)
}

// fail leaves the backend because of err, connects to another and sends it what
// has come back. False: there is no other, and the flow is closed.
func (f *flow) fail(err error, now int64) bool {
	if f.leaving != 0 {
		f.close()
		return false
	}
	c, err := f.another(f.choice, err, now)
	f.choice = lb.Choice{}
	if err != nil || f.connect(c, now) != nil {
		f.close()
		return false
	}
	f.ln.shard.io.resend(f)
	return true
}

// another gives c up because of err and returns another choice.
func (f *flow) another(c lb.Choice, err error, now int64) (lb.Choice, error) {
	f.ln.shard.count.Refused.Add(1)
	asked := lb.Flow{Frontend: f.ln.frontend, Client: f.key.client.Addr(), Now: now}
	return f.next(f.ln.shard.server.LB, asked, c, err)
}

// connect connects the socket to the backend of c, or to another if there is no
// path to it. If it fails there is no choice to be done with.
func (f *flow) connect(c lb.Choice, now int64) error {
	sh := f.ln.shard
	evicted := false
	for {
		err := sh.io.connect(f, c.Backend(), now)
		switch {
		case err == nil:
			f.choice = c
			return nil
		case !ofHost(err):
			if c, err = f.another(c, err, now); err != nil {
				return err
			}
		case evicted || sh.recency.last == f || !sh.evict(&sh.recency):
			c.Done(nil) // nothing is known about the backend
			return err
		default:
			evicted = true // its port is free now
		}
	}
}

// touch notes a datagram, in either direction.
func (f *flow) touch(now int64) {
	f.active = now
	if f.leaving == 0 {
		f.ln.recency.toFront(f)
		f.ln.shard.recency.toFront(f)
	}
}

// leave makes the flow send nothing any more, since its backend is gone, and
// the first to be evicted. Leaving twice is fine.
func (f *flow) leave(now int64) {
	if f.leaving != 0 {
		return
	}
	f.release()
	f.leaveBy(now + linger)
	f.ln.shard.io.after(f, f.rest(now, f.ln.shard.server))
	f.ln.shard.count.Moved.Add(1)
}

// leaveBy makes the flow the first to be evicted.
func (f *flow) leaveBy(at int64) {
	f.leaving = at
	f.ln.recency.toBack(f)
	f.ln.shard.recency.toBack(f)
}

// expire closes the flow if it is idle, else looks again later, at least so many ns. The timer
// is not restarted with each datagram, so this is when it is looked how long ago the last was.
func (f *flow) expire(now, least int64) {
	sh := f.ln.shard
	if rest := max(f.rest(now, sh.server), least); rest > 0 {
		sh.io.after(f, rest)
		return
	}
	if f.leaving == 0 {
		sh.count.Expired.Add(1)
	}
	f.close()
}

// close ends the flow.
func (f *flow) close() {
	ln, sh := f.ln, f.ln.shard
	sh.io.close(f)
	sh.giveDescriptor()
	f.release()
	if ln.flows[f.key] == f {
		delete(ln.flows, f.key)
	}
	ln.recency.remove(f)
	sh.recency.remove(f)
	sh.ages.remove(f)
	sh.count.Active.Add(-1)
	sh.drain.Check(sh.recency.len == 0)
}
