package session

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// Policies of Services that end connections are looked after by walks over the connections of a loop, from time to
// time, and so are bytes that are not counted yet. There are no walks while no connection moves bytes, no Service has
// such a policy, and no endpoint has left one that does not drain for good.

const (
	walkBatch = 256                // connections that are looked at before the other descriptors of the loop are served
	idleParts = 8                  // a connection is looked at so many times in an idle timeout,
	idleLeast = int64(50e6)        // but not more often than that, in ns,
	idleMost  = int64(time.Minute) // nor less often

	counting = int64(5 * time.Second) // bytes that have moved are in the counters of the endpoint so soon
)

// walk is one over all connections of a Shard, some at a time.
type walk[C Owner[C]] struct {
	sh      *Shard[C]
	timer   eventloop.Timer
	posted  atomic.Bool
	walking bool
	at      C     // the next one to look at, while walking
	due     int64 // when a connection is to be looked at again, at the earliest
	ages    map[C]age
}

// age is what is known of a connection with policies that are looked after.
type age struct {
	born       int64          // when its backend answered, or it was seen first
	active     int64          // when bytes were last found to have moved
	clientEnd  int64          // when the client was found to have ended its stream; 0: it has not
	backendEnd int64          // when the backend was
	moved      balancer.Meter // what its Meter was at active
	chance     uint32         // of 2^32, that shortens its life
}

func (w *walk[C]) setAge(c C, a age) {
	if w.ages == nil {
		w.ages = make(map[C]age)
	}
	w.ages[c] = a
}

// newAge is that of a connection whose backend has answered now.
func newAge(now int64, moved balancer.Meter) age {
	return age{born: now, active: now, moved: moved, chance: rand.Uint32()}
}

// ageOf returns the age of a connection, with what has moved and ended until now.
func (w *walk[C]) ageOf(c C, now int64) age {
	was, known := w.ages[c]
	a, meter := was, c.Base().Meter
	switch {
	case !known:
		a = newAge(now, meter)
	case a.moved != meter:
		a.moved, a.active = meter, now
	}
	_, client, backend := c.Parts()
	if client.EOF && a.clientEnd == 0 {
		a.clientEnd = now
	}
	if backend.EOF && a.backendEnd == 0 {
		a.backendEnd = now
	}
	if a != was {
		w.setAge(c, a)
	}
	return a
}

// watchSoon begins a walk. It may be called from anywhere.
func (sh *Shard[C]) watchSoon() {
	if sh.walk.posted.CompareAndSwap(false, true) && sh.Loop.Post(sh.watchNow) != nil {
		sh.walk.posted.Store(false)
	}
}

func (sh *Shard[C]) watchNow() {
	sh.walk.posted.Store(false)
	sh.watch(0)
}

// watch has a walk begin in so many ns, if none is due before.
func (sh *Shard[C]) watch(in int64) {
	w := &sh.walk
	if w.walking {
		w.due = min(w.due, eventloop.Now()+in)
		return
	}
	if !w.timer.Active() || int64(sh.Loop.Left(&w.timer)) > in {
		sh.Loop.After(&w.timer, w, time.Duration(in))
	}
}

// Moved counts bytes from the client of a connection and to it.
func (sh *Shard[C]) Moved(conn *Conn[C], in, out int) {
	if conn.Meter.Add(conn.Choice, in, out) {
		sh.watch(counting)
	}
}

// Expire looks at some connections.
func (w *walk[C]) Expire(*eventloop.Timer) {
	sh, now := w.sh, eventloop.Now()
	if !w.walking {
		w.walking, w.at, w.due = true, sh.first, math.MaxInt64
	}
	var none C
	for range walkBatch {
		c := w.at
		if c == none {
			break
		}
		w.at = c.Base().next // until it is removed
		w.due = min(w.due, sh.look(c, now))
	}
	if w.at != none {
		sh.Loop.After(&w.timer, w, 0)
		return
	}
	if w.walking = false; w.due != math.MaxInt64 {
		sh.Loop.After(&w.timer, w, time.Duration(max(w.due-now, 0)))
	}
}

// look ends a connection whose Service does not have it stay, and else returns when it is to be looked at again.
func (sh *Shard[C]) look(c C, now int64) (due int64) {
	conn := c.Base()
	if conn.dial != nil {
		return math.MaxInt64 // it is watched from its backend's answer on
	}
	conn.Meter.Flush(conn.Choice)
	due = conn.Choice.Leaves(now)
	if due <= now {
		sh.reset(c, &sh.Count.DrainReset, lb.EndpointLeft)
		return math.MaxInt64
	}
	p := conn.Choice.Policies()
	if !p.Watched() {
		return due
	}
	a := sh.walk.ageOf(c, now)
	if p.MaxConnectionDuration > 0 {
		end := a.born + lifetime(p, a.chance)
		if end <= now {
			sh.reset(c, &sh.Count.DurationExceeded, lb.TooOld)
			return math.MaxInt64
		}
		due = min(due, end)
	}
	_, client, backend := c.Parts()
	for _, t := range [...]struct {
		timeout, from int64 // the timeout starts then, and again with each byte
		holds         bool
		count         *atomic.Uint64
		end           lb.End
	}{
		{p.IdleTimeout, a.active, true, &sh.Count.IdleTimedOut, lb.IdleEnd},
		{p.HalfCloseTimeout, a.clientEnd, client.EOF, &sh.Count.HalfCloseTimedOut, lb.ClientHalf},
		{p.HalfCloseTimeout, a.backendEnd, backend.EOF, &sh.Count.HalfCloseTimedOut, lb.ServerHalf},
	} {
		if t.timeout <= 0 {
			continue
		}
		next := max(idleLeast, min(t.timeout/idleParts, idleMost))
		if left := max(a.active, t.from) + t.timeout - now; t.holds && left > 0 {
			next = min(next, left)
		} else if t.holds {
			sh.reset(c, t.count, t.end)
			return math.MaxInt64
		}
		due = min(due, now+next)
	}
	return due
}

// lifetime returns how long a connection may live: what the Service allows, less a part that differs from one to the
// next, so that those of one moment do not come again at one moment.
func lifetime(p *lb.Policies, chance uint32) int64 {
	part := uint64(p.MaxConnectionDuration) / 100 * uint64(max(0, p.MaxConnectionJitter))
	shorter, _ := bits.Mul64(part, uint64(chance)<<32)
	return p.MaxConnectionDuration - int64(shorter)
}

// reset counts and resets a connection.
func (sh *Shard[C]) reset(c C, count *atomic.Uint64, end lb.End) {
	count.Add(1)
	sh.because(c, end)
	sh.Abort(c)
}

// FreezeKept returns what another process needs to keep the policies of c.
func (sh *Shard[C]) FreezeKept(c C) Kept {
	conn, now := c.Base(), eventloop.Now()
	k := Kept{Born: now - int64(conn.born.Age(now)), Counted: conn.Claim.CountsClient()}
	k.In, k.Out = conn.Meter.Total()
	if conn.dial != nil {
		return k
	}
	if conn.Choice.Policies().Watched() {
		a := sh.walk.ageOf(c, now)
		k.Answered, k.Active, k.Chance = a.born, a.active, a.chance
		k.ClientEnd, k.BackendEnd = a.clientEnd, a.backendEnd
	}
	if n := sh.notes[c]; n != nil {
		k.Why = n.why
	}
	since, drain := conn.Choice.Gone()
	k.Gone, k.Drain = since, time.Duration(drain)
	return k
}

// thawKept goes on with what another process has frozen.
func (sh *Shard[C]) thawKept(c C, k Kept) {
	conn := c.Base()
	conn.born, conn.Meter = look.At(k.Born), balancer.ResumeMeter(k.In, k.Out)
	if k.Answered != 0 {
		sh.walk.setAge(c, age{k.Answered, k.Active, k.ClientEnd, k.BackendEnd, conn.Meter, k.Chance})
	}
	conn.Choice.ResumeGone(k.Gone, int64(k.Drain))
	if p := conn.Choice.Policies(); p.Watched() || p.OnEndpointRemoved > 0 {
		sh.watch(0)
	}
}
