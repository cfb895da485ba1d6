package udp

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/mmsg"
)

// perEvent is how many datagrams one event may take, or a batch more, before the events of
// the loop's other sockets.
const perEvent = 4 * slots

// perFlow is as how many datagrams a new flow counts: its socket takes some 30 us.
const perFlow = 16

// plenty is more hops than any packet has left.
const plenty = 256

// loopListener is the socket of a listener on a loop.
type loopListener struct {
	fd int

	emptied int64 // time at which nothing waited, as far as a flow had to know, ns
	behind  bool  // a flow has to know, and more waited than could be taken at once
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
			taken += slots
			continue
		}
		made := sh.count.Created.Load()
		taken += ln.forward(n, eventloop.Now())
		taken += perFlow * int(sh.count.Created.Load()-made)
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
	var hops [slots]int // plenty: not known
	var handled [slots]bool
	for i := range n {
		var wrong *atomic.Uint64
		if keys[i], hops[i], wrong = ln.read(i); wrong != nil {
			handled[i] = true
			dropped := datagrams(len(sh.in.Payload(i)), sh.in.Control(i).SegmentSize())
			wrong.Add(uint64(dropped))
			total += dropped
		}
	}
	for i := range n {
		if handled[i] {
			continue
		}
		f, dropped := ln.flow(&keys[i], now)
		sh.out.reset(f == nil || f.plain[toBackend] || now < f.trial)
		if f != nil {
			sh.out.precede(f.header)
		}
		left := plenty
		for j := i; j < n; j++ {
			if !handled[j] && (j == i || keys[j] == keys[i]) {
				handled[j] = true
				left = min(left, hops[j])
				sh.out.add(sh.in.Payload(j), sh.in.Control(j).SegmentSize())
			}
		}
		total += sh.out.left
		if f == nil {
			if dropped != &sh.count.NoBackend || !ln.hold(keys[i], left, now) {
				dropped.Add(uint64(sh.out.left))
			}
			continue
		}
		if left < plenty {
			f.allow(left)
		}
		f.send(now)
	}
	return total
}

// read returns the flow that the i-th message belongs to, and how many hops it has left. wrong counts those that cannot
// be forwarded.
func (ln *listener) read(i int) (key flowKey, hops int, wrong *atomic.Uint64) {
	sh := ln.shard
	key, ok := keyOf(sh.in, i)
	if !ok {
		return key, 0, &sh.count.Malformed
	}
	hops, ok = sh.in.Control(i).Hops()
	switch {
	case !ok:
		return key, plenty, nil
	case hops <= 1:
		return key, hops, &sh.count.HopsExceeded
	}
	return key, hops, nil
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
