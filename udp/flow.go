package udp

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/proxyproto"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

const (
	// maxAttempts is how many backends in a row may refuse a flow before it is
	// given up; as many as a TCP connection is dialled.
	maxAttempts = 4

	// brief is how long a flow is idle at least before it is parked, and at most while the server drains: as long as
	// kube-proxy's userspace mode kept one.
	brief = int64(250 * time.Millisecond)

	// linger is how long a backend that is gone may answer what it was asked before, unless the
	// flow is idle sooner.
	linger = int64(time.Second)

	// portPause is how long a shard asks for no ephemeral port after there was none: each time the
	// kernel looks at all of them, which takes longer than a thousand datagrams.
	portPause = int64(100 * time.Millisecond)
)

// errTried means that maxAttempts backends have refused, errNoDescriptor that the budget of
// descriptors does not allow one more flow, errNoPort that a moment ago there was no ephemeral port, errSilent that a
// backend has not answered in time.
var (
	errTried        = errors.New("every endpoint that was tried refused")
	errNoDescriptor = errors.New("no descriptor for a flow")
	errNoPort       = errors.New("no ephemeral port for a flow")
	errSilent       = errors.New("no answer, though one is expected")
)

// listener is one frontend's socket in one shard, and the flows that came by it.
type listener struct {
	shard    *shard
	frontend lb.Frontend
	flows    map[flowKey]*flow // made by the first flow; many frontends never see one
	own      order             // flows, those included that were replaced in the map

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
	ln    *listener
	key   flowKey
	links [orders]link

	service   *holder[lb.Name]    // that it counts for
	source    *holder[netip.Addr] // the client's address, without its port
	assurance assurance
	mapped    bool   // the listener's map has this flow; a new flow may replace one that leaves
	header    []byte // of the PROXY protocol, before each datagram to the backend; nil: none
	dialogue

	log      *logging        // nil: it is not logged
	choice   balancer.Choice // not valid while leaving
	meter    balancer.Meter  // of what choice has moved
	tried    *balancer.Tried // backends that have refused since the last answer; nil at first
	attempts int             // how many
	born     int64           // time of the first datagram, ns
	active   int64           // time of the last datagram, ns
	leaving  int64           // time to be gone by, ns; 0 while the backend is in the table

	loopFlow // of the platform
	*goFlow  // nil with loops
}

// newListener makes the listener of a frontend, without a socket.
func (sh *shard) newListener(f lb.Frontend) *listener {
	return &listener{shard: sh, frontend: f, own: order{by: byFrontend}}
}

// start begins to forward.
func (ln *listener) start() error {
	var started error
	err := ln.shard.io.do(func() { started = ln.shard.io.start(ln) })
	return errors.Join(err, started)
}

// closeFlows closes every flow.
func (ln *listener) closeFlows() {
	for ln.own.first != nil {
		ln.own.first.close()
	}
}

// flow returns the flow with this key, which is made if need be. nil: there is
// none, and the datagrams count as dropped at the counter returned.
func (ln *listener) flow(key *flowKey, now int64) (*flow, *atomic.Uint64) {
	sh := ln.shard
	var tried *balancer.Tried
	switch f := ln.flows[*key]; {
	case f != nil && f.choice.Live() && f.goesOn(now):
		f.asked(now)
		return f, nil
	case f != nil:
		if f.silent {
			f.avoid(f.choice)
		}
		tried = f.tried
		f.leave(now) // a new one takes its place
	case sh.drain.Started():
		return nil, &sh.count.Draining
	}
	f, err := ln.open(key, now, tried)
	if err != nil {
		return nil, sh.count.reason(err)
	}
	return f, nil
}

// open makes a flow, whose client has tried these backends, if any.
func (ln *listener) open(key *flowKey, now int64, tried *balancer.Tried) (*flow, error) {
	sh := ln.shard
	if now < sh.portless {
		return nil, errNoPort
	}
	c, there, err := ln.resume(key, now, tried)
	if err != nil {
		return nil, err
	}
	service := c.Service().Service()
	sh.makeRoom(c.Service(), lb.HostOf(key.client.Addr()), now)
	if !sh.server.Descriptors.Take(1) {
		c.Done(nil) // nothing is known about the backend
		return nil, errNoDescriptor
	}
	f := sh.newFlow(c.Backend(), now)
	f.ln, f.key, f.born, f.active, f.tried, f.assurance = ln, *key, now, now, tried, there
	if err = sh.io.open(f, c.Backend()); err != nil && sh.evict(sh.victim(service), nil, now) {
		err = sh.io.open(f, c.Backend())
	}
	if err != nil {
		c.Done(nil)
		sh.server.Descriptors.Give(1)
		return nil, err
	}
	if err = f.connect(c, now); err == nil {
		err = sh.io.watch(f)
	}
	if err != nil {
		f.release()
		sh.io.close(f)
		sh.server.Descriptors.Give(1)
		return nil, err
	}
	if f.choice.ProxyVersion() == uint8(proxyproto.V2) {
		f.header = f.announcement()
	}
	ln.keep(f, service)
	f.begin()
	f.later(now, f.look(now))
	sh.count.Created.Add(1)
	return f, nil
}

// newFlow returns an empty flow. If the flow that has rested for longest must go, its memory and its socket are reused.
func (sh *shard) newFlow(backend netip.AddrPort, now int64) *flow {
	old := sh.resting(now)
	if old == nil {
		return new(flow)
	}
	left, ok := sh.io.inherit(old, backend)
	old.park()
	if !ok {
		return new(flow)
	}
	*old = flow{loopFlow: left}
	return old
}

// announcement returns the PROXY header by which backends hear of the client.
func (f *flow) announcement() []byte {
	asked := f.destination()
	var id [proxyproto.IDLen]byte
	service := f.choice.Service()
	h := proxyproto.Header{Source: f.key.client, Destination: asked, Datagram: true,
		UniqueID: f.ln.shard.ids.Append(id[:0]), Namespace: service.Namespace, Name: service.Name}
	return h.Append(nil, proxyproto.V2)
}

// destination returns the address that the client has asked.
func (f *flow) destination() netip.AddrPort {
	asked := f.ln.frontend.Addr
	if asked.Addr().IsUnspecified() {
		asked = netip.AddrPortFrom(f.key.local, asked.Port())
	}
	return asked
}

func (ln *listener) pick(key *flowKey, now int64, tried *balancer.Tried) (balancer.Choice, error) {
	return ln.shard.server.LB.Pick(balancer.Flow{Frontend: ln.frontend, Client: key.client.Addr(),
		ClientPort: key.client.Port(), Now: now, Tried: tried, Why: &ln.shard.why})
}

// keep puts a new flow, which counts for a Service, into the map, unless another has its place, and into the orders.
func (ln *listener) keep(f *flow, service lb.Name) {
	if ln.flows == nil {
		ln.flows = make(map[flowKey]*flow)
	}
	if there := ln.flows[f.key]; there == nil || there.leaving != 0 {
		if there != nil {
			there.mapped = false
		}
		ln.flows[f.key], f.mapped = f, true
	}
	ln.own.pushFront(f)
	ln.shard.ages.pushFront(f)
	f.join(service)
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
	f.choice = balancer.Choice{}
	if err != nil || f.connect(c, now) != nil {
		f.because(lb.ServerData)
		f.close()
		return false
	}
	if f.expects {
		f.awaits = now
	}
	f.ln.shard.io.resend(f)
	return true
}

// another gives c up because of err and returns another choice, or why there is none.
func (f *flow) another(c balancer.Choice, err error, now int64) (balancer.Choice, error) {
	f.ln.shard.count.Refused.Add(1)
	f.meter.Flush(c)
	c.Failed(err, now)
	if f.attempts++; f.attempts >= maxAttempts {
		return balancer.Choice{}, errTried
	}
	f.avoid(c)
	c, err = f.ln.pick(&f.key, now, f.tried)
	if f.log != nil && err == nil {
		f.log.why = f.ln.shard.why
	}
	return c, err
}

// avoid has the flow, and the one that takes its place, get other backends than that of c, if there are.
func (f *flow) avoid(c balancer.Choice) {
	if f.tried == nil {
		f.tried = new(balancer.Tried)
	}
	f.tried.Add(c)
}

// answered notes a datagram of the backend.
func (f *flow) answered(now int64) {
	f.attempts, f.tried = 0, nil
	f.choice.Answered()
	if !f.replied {
		if f.log != nil {
			f.log.firstByte = time.Duration(now - f.born)
		}
		f.choice.Took(now-f.active, now)
	}
	f.touch(now, f.onReply(now))
	f.rests()
}

// stale reports whether the backend is neither ready nor serving any more, or the frontend
// is another Service's.
func (f *flow) stale(t *lb.Table) bool {
	owner, _, ok := t.Lookup(f.ln.frontend)
	return !f.choice.Live() || !ok || owner.ID != f.choice.Service()
}

// moved counts bytes from the client and to it.
func (f *flow) moved(in, out int) {
	if !f.meter.Add(f.choice, in, out) || !f.choice.Valid() {
		return
	}
	if now := eventloop.Now(); f.looks-now > counting {
		f.later(now, counting)
	}
}

// release gives the choice back.
func (f *flow) release() {
	f.meter.Flush(f.choice)
	f.choice.Done(nil)
	f.choice = balancer.Choice{}
}

// rest returns how long the flow has to live, in ns, if nothing more comes.
func (f *flow) rest(now int64) int64 {
	until := f.active + f.idle(now)
	if f.leaving != 0 {
		until = min(until, f.leaving)
	}
	return until - now
}

// connect connects the socket to the backend of c, or to another if there is no
// path to it. If it fails there is no choice to be done with.
func (f *flow) connect(c balancer.Choice, now int64) error {
	sh := f.ln.shard
	if now < sh.portless { // the flow had a port, which is another's now
		c.Done(nil) // nothing is known about the backend
		return errNoPort
	}
	evicted := false
	for {
		err := sh.io.connect(f, c.Backend(), now)
		if noPort(err) {
			sh.portless = now + portPause
		}
		switch {
		case err == nil:
			f.choice = c
			return nil
		case !ofHost(err):
			if c, err = f.another(c, err, now); err != nil {
				return err
			}
		case evicted || !sh.evict(sh.besides(f, c.Service().Service()), nil, now):
			c.Done(nil)
			return err
		default:
			evicted = true // its port is free now
		}
	}
}

// touch notes a datagram, in either direction, and whether it shows that the client is there.
func (f *flow) touch(now int64, there bool) {
	f.active = now
	switch {
	case f.leaving != 0:
	case there && f.assurance == unknown:
		f.assure(known)
	default:
		f.toFront()
	}
}

// leave makes the flow send nothing any more, since its backend is gone, and
// the first to be evicted. Leaving twice is fine.
func (f *flow) leave(now int64) {
	if f.leaving != 0 {
		return
	}
	f.because(lb.EndpointLeft)
	f.release()
	f.awaits = 0
	f.leaveBy(now + linger)
	f.later(now, f.rest(now))
	f.ln.shard.count.Moved.Add(1)
}

// leaveBy makes the flow the first to be evicted.
func (f *flow) leaveBy(at int64) {
	f.leaving = at
	f.demote()
}

// expire closes the flow if it is idle, else looks again later, at least so many ns. The timer
// is not restarted with each datagram, so this is when it is looked how long ago the last was.
func (f *flow) expire(now, least int64) {
	sh := f.ln.shard
	f.notAnswered(now)
	f.meter.Flush(f.choice)
	if rest := max(f.rest(now), least); rest > 0 {
		if f.awaits != 0 {
			rest = min(rest, f.awaits+f.patience(now)-now)
		}
		f.later(now, rest)
		return
	}
	switch {
	case f.leaving != 0:
	case f.expiresEarly(now) && f.fixed() == 0 && !sh.drain.Started():
		f.park()
		return
	default:
		sh.count.Expired.Add(1)
	}
	f.close()
}

// park closes the flow early. The balancer remembers where its client goes on.
func (f *flow) park() {
	f.ln.shard.count.Parked.Add(1)
	f.remember()
	f.close()
}

// close ends the flow.
func (f *flow) close() {
	ln, sh := f.ln, f.ln.shard
	f.end()
	sh.io.close(f)
	sh.server.Descriptors.Give(1)
	f.release()
	if f.mapped {
		delete(ln.flows, f.key)
	}
	ln.own.remove(f)
	sh.ages.remove(f)
	f.setOneShot(false)
	f.leaveHolders()
	sh.count.Active.Add(-1)
	sh.drain.Check(sh.ages.len == 0)
}
