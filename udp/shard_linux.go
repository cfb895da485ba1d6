package udp

import (
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/mmsg"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

// perEvent is how many datagrams one event may take, or a batch more, before the events of
// the loop's other sockets.
const perEvent = 4 * slots

// perWalk is how many flows are looked at after a change of the table before the loop's
// sockets are served: some 0.3 ms.
const perWalk = 1024

// shard is the part of a Server that lives on one loop. Its batches are used by
// one event at a time, whichever socket that is for.
type shard struct {
	server  *Server
	loop    *eventloop.Loop
	share   int   // flows of one frontend on this loop
	recency order // all flows
	ages    order // all flows
	scan    func()
	drain   eventloop.Drain
	count   loopCounters

	scanning atomic.Bool     // a scan is posted and has not begun
	stale    bool            // the table has changed since the last walk over the flows began
	rest     eventloop.Timer // runs while a walk is not at its end

	in     *mmsg.Reader // what a client or a backend has sent
	quotes *mmsg.Reader // what has come back as refused
	out    outgoing     // datagrams of in, to be sent
	again  outgoing     // datagrams of quotes, to be sent; out is in use meanwhile
}

func newShard(s *Server, loop *eventloop.Loop) *shard {
	loops := len(s.Loops.Loops())
	sh := &shard{
		server:  s,
		loop:    loop,
		share:   max(1, (s.maxFlows()+loops-1)/loops),
		recency: order{by: byLoop},
		ages:    order{by: byAge},
		in:      mmsg.NewReader(datagramSize),
		quotes:  mmsg.NewReader(quoteSize),
	}
	sh.scan = sh.leaveGone
	sh.out.gso = !s.DisableGSO && segmentation()
	return sh
}

// scheduleScan makes the loop look for flows that have to leave their backends. It may be
// called from anywhere. One scan serves all changes that were made before it.
func (sh *shard) scheduleScan() {
	if sh.scanning.CompareAndSwap(false, true) && sh.loop.Post(sh.scan) != nil {
		sh.scanning.Store(false)
	}
}

// leaveGone makes each flow leave its backend if that is gone, or if the frontend has
// become another Service's. A walk that is under way is followed by another.
func (sh *shard) leaveGone() {
	sh.scanning.Store(false)
	sh.stale = true
	if !sh.rest.Active() {
		sh.walk()
	}
}

// walk looks at some flows. The others wait for a timer, since all that is posted runs
// before any socket is served. It goes from the youngest to the oldest, an order that
// activity does not change. A flow that is made meanwhile is not looked at: it is chosen
// by the new table.
func (sh *shard) walk() {
	flows := &sh.ages
	if flows.ahead == nil && sh.stale {
		sh.stale = false
		flows.ahead = flows.first
	}
	now, table := eventloop.Now(), sh.server.LB.Table()
	for n := 0; n < perWalk && flows.ahead != nil; n++ {
		f := flows.ahead
		flows.ahead = f.links[byAge].next
		if f.stale(table, f.ln.frontend) {
			f.leave(now)
		}
	}
	if flows.ahead != nil || sh.stale {
		sh.loop.After(&sh.rest, sh, 0)
	}
}

// Expire goes on with a walk.
func (sh *shard) Expire(*eventloop.Timer) { sh.walk() }

// startDrain refuses new clients from now on.
func (sh *shard) startDrain() { sh.drain.Start(sh.recency.len == 0) }

// evict closes the least recently active flow of o. False: there is none.
func (sh *shard) evict(o *order) bool {
	if o.last == nil {
		return false
	}
	sh.count.Evicted.Add(1)
	o.last.close()
	return true
}

// open makes a socket towards a backend at addr, within the budget.
func (sh *shard) open(addr netip.Addr) (int, error) {
	budget := sh.server.Descriptors
	if budget != nil && !budget.Take(1) && !(sh.evict(&sh.recency) && budget.Take(1)) {
		return -1, unix.EMFILE
	}
	fd, err := socket.New(addr, unix.SOCK_DGRAM, 0)
	if ofHost(err) && sh.evict(&sh.recency) {
		fd, err = socket.New(addr, unix.SOCK_DGRAM, 0)
	}
	if err == nil {
		// With the error queue the kernel also reports what it would otherwise keep
		// to itself for UDP, such as an unreachable host (ip(7), IP_RECVERR).
		level, option := unix.IPPROTO_IP, unix.IP_RECVERR
		if addr.Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
		}
		if err = unix.SetsockoptInt(fd, level, option, 1); err == nil {
			socket.SetReceiveBuffer(fd, sh.server.socketBuffer())
			enableGRO(fd)
			return fd, nil
		}
		_ = unix.Close(fd)
	}
	sh.server.refund()
	return -1, err
}

// listener is one frontend's socket on one loop, and the flows that came by it.
type listener struct {
	shard    *shard
	frontend lb.Frontend
	fd       int
	flows    map[flowKey]*flow // made by the first flow; many frontends never see one
	recency  order             // flows, those included that were replaced in the map

	emptied int64 // time at which nothing waited, as far as a flow had to know, ns
	behind  bool  // a flow has to know, and more waited than could be taken at once
}

func (sh *shard) newListener(f lb.Frontend, fd int) *listener {
	return &listener{shard: sh, frontend: f, fd: fd, recency: order{by: byFrontend}}
}

func (ln *listener) start() error { return ln.shard.loop.AddRead(ln.fd, ln) }

// stop closes the socket and every flow.
func (ln *listener) stop() {
	_ = ln.shard.loop.Close(ln.fd)
	for ln.recency.first != nil {
		ln.recency.first.close()
	}
}

// HandleEvent forwards what clients have sent.
func (ln *listener) HandleEvent(eventloop.Event) {
	if ln.behind {
		ln.catchUp(eventloop.Now())
		return
	}
	ln.receive()
}

// caughtUp reports whether everything is forwarded that clients had sent by a time. What
// waits is forwarded now, or soon if it is much.
func (ln *listener) caughtUp(by, now int64) bool {
	if ln.emptied < by && !ln.behind {
		ln.catchUp(now)
	}
	return ln.emptied >= by
}

func (ln *listener) catchUp(now int64) {
	if ln.behind = !ln.receive(); !ln.behind {
		ln.emptied = now
	}
}

// receive forwards what waits in the socket. False: there may be more.
func (ln *listener) receive() bool {
	sh := ln.shard
	for taken := 0; taken < perEvent; {
		n, err := sh.in.Read(ln.fd, 0)
		switch {
		case err == unix.EAGAIN:
			return true
		case err != nil:
			sh.count.ReceiveErrors.Add(1)
			taken += slots
			continue
		}
		taken += ln.forward(n, eventloop.Now())
		if n < slots {
			return true
		}
	}
	_ = sh.loop.RearmRead(ln.fd) // fails for a descriptor that is not watched only
	return false
}

// forward sends the n messages that were just received, those of each flow together and
// in order, and returns how many datagrams there were. Looking for the others of a flow compares each with each;
// 32 are few enough, and a map of runs would cost more.
func (ln *listener) forward(n int, now int64) (total int) {
	sh := ln.shard
	var keys [slots]flowKey
	var handled [slots]bool
	for i := range n {
		key, ok := keyOf(sh.in, i)
		if !ok {
			handled[i] = true
			dropped := datagrams(len(sh.in.Payload(i)), sh.in.Control(i).SegmentSize())
			sh.count.Malformed.Add(uint64(dropped))
			total += dropped
		}
		keys[i] = key
	}
	for i := range n {
		if handled[i] {
			continue
		}
		f, dropped := ln.flow(&keys[i], sh.in.Name(i), now)
		sh.out.reset(f == nil || f.plain[toBackend] || now < f.trial)
		for j := i; j < n; j++ {
			if !handled[j] && (j == i || keys[j] == keys[i]) {
				handled[j] = true
				sh.out.add(sh.in.Payload(j), sh.in.Control(j).SegmentSize())
			}
		}
		total += sh.out.left
		if f == nil {
			dropped.Add(uint64(sh.out.left))
			continue
		}
		f.send(now)
	}
	return total
}

// keyOf returns the flow that the i-th message belongs to. False: it cannot be known
// or answered.
func keyOf(in *mmsg.Reader, i int) (flowKey, bool) {
	name := in.Name(i)
	client := name.AddrPort()
	local, ok := in.Control(i).LocalAddr()
	if !ok || client.Port() == 0 || in.Truncated(i) {
		return flowKey{}, false
	}
	return flowKey{client: client, local: local, scope: name.Scope()}, true
}

// flow returns the flow with this key, which is made if need be. nil: there is
// none, and the datagrams count as dropped at the counter returned.
func (ln *listener) flow(key *flowKey, client *socket.Name, now int64) (*flow, *atomic.Uint64) {
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
	f, err := ln.open(key, client, now)
	if err != nil {
		return nil, sh.count.reason(err)
	}
	return f, nil
}

// open makes a flow.
func (ln *listener) open(key *flowKey, client *socket.Name, now int64) (*flow, error) {
	sh := ln.shard
	c, err := sh.server.LB.Pick(lb.Flow{Frontend: ln.frontend, Client: key.client.Addr(), Now: now})
	if err != nil {
		return nil, err
	}
	if ln.recency.len >= sh.share {
		sh.evict(&ln.recency)
	}
	fd, err := sh.open(c.Backend().Addr())
	if err != nil {
		c.Done(nil) // nothing is known about the backend
		return nil, err
	}
	f := &flow{ln: ln, key: *key, client: *client, fd: fd, route: route{active: now}}
	if err := f.connect(c, now); err != nil {
		_ = unix.Close(fd)
		sh.server.refund()
		return nil, err
	}
	if err := sh.loop.AddRead(fd, f); err != nil {
		f.release()
		_ = unix.Close(fd)
		sh.server.refund()
		return nil, err
	}
	if ln.flows == nil {
		ln.flows = make(map[flowKey]*flow)
	}
	ln.flows[*key] = f
	ln.keep(f)
	sh.loop.After(&f.timer, f, sh.server.idleTimeout())
	sh.count.Created.Add(1)
	sh.count.Active.Add(1)
	return f, nil
}

// keep puts a new flow into the orders.
func (ln *listener) keep(f *flow) {
	ln.recency.pushFront(f)
	ln.shard.recency.pushFront(f)
	ln.shard.ages.pushFront(f)
}
