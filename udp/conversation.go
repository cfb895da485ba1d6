package udp

import (
	"math/rand/v2"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

const (
	// lasting is how long after the first answer to a question further ones show that the client is there, as conntrack
	// has it (nf_conntrack_udp_packet, Linux 5.0): a resolver that asks for A and AAAA at once gets two, and that is
	// all. It is also the longest pause before a question that follows an answer.
	lasting = int64(2 * time.Second)

	// silence is how long an answer may take where one is expected: a client that sends every 500 ms has another
	// backend within 2 s. Up to a quarter less, at random, so that one flow tries another backend before all leave.
	silence = int64(1500 * time.Millisecond)

	// counting is after how long at most the bytes of a flow are in the counters of its backend.
	counting = int64(2 * time.Second)

	// settling is how many questions follow an answer before a flow is not one-shot any more: a handshake of QUIC or
	// DTLS has as many. A host that asks from new ports uses a port again after some time, which is no conversation.
	settling = 2

	// pressing is how long flows expire early after one had to make room.
	pressing = int64(10 * time.Second)

	// oneShotsPart: one-shot flows may keep one of so many places of a shard.
	oneShotsPart = 4
)

// dialogue is what a flow's client and backend have said to each other.
type dialogue struct {
	heard    int64 // time of the first answer since the client's last datagram, ns; 0: there was none
	awaits   int64 // time of the first question that nothing has followed from the backend, ns; 0: none is expected to
	looks    int64 // time of the next look at the flow, ns
	bears    int64 // how long an answer may take, ns, unless the flow is idle before
	replied  bool  // the backend has answered
	expects  bool  // the Service says that backends answer
	silent   bool  // the backend has let the time for an answer pass
	followed uint8 // questions that soon followed an answer, up to settling
	oneShot  bool  // it was answered once, and nothing followed: it is in the shard's list
}

// idle returns how long the flow lives after its last datagram, in ns, as far as it is known by now.
func (f *flow) idle(now int64) int64 {
	fixed, sh := f.fixed(), f.ln.shard
	switch {
	case fixed > 0:
		return fixed
	case sh.drain.Started():
		return brief
	case f.expiresEarly(now):
		return lasting
	case f.assurance == known:
		return balancer.UDPStreamTimeout
	}
	return balancer.UDPTimeout
}

// expiresEarly reports whether the flow expires soon because another had to make room within pressing: the sources of a
// flood must not hold their places for 30 s, or 120. Its endpoint is remembered. A flow without an answer stays, since
// a late answer may come.
func (f *flow) expiresEarly(now int64) bool {
	return f.replied && f.followed < settling && f.leaving == 0 && now < f.ln.shard.pressedUntil
}

// fixed returns for how long the Service, or the server, has every flow live; 0: it depends.
func (f *flow) fixed() int64 {
	if t := f.choice.Policies().UDPIdleTimeout; t > 0 {
		return t
	}
	return int64(f.ln.shard.server.IdleTimeout)
}

// look returns when a new flow is looked at first, in ns from now.
func (f *flow) look(now int64) int64 {
	if f.expect(now); f.expects {
		return f.patience(now)
	}
	return min(counting, f.idle(now)) // it may have its answer then, and be passing
}

// expect has the flow await answers if its Service says that there are, and one to what was asked at a time, if any.
func (f *flow) expect(asked int64) {
	if f.expects = f.choice.ExpectsAnswers(); f.expects {
		f.awaits, f.bears = asked, silence-rand.Int64N(silence/4)
	}
}

// patience returns how long an answer may take, in ns.
func (f *flow) patience(now int64) int64 { return min(f.bears, f.idle(now)) }

// later has the flow looked at in so many ns.
func (f *flow) later(now, in int64) {
	f.looks = now + in
	f.ln.shard.io.after(f, in)
}

// notAnswered notes that the time for an answer is over, if it is.
func (f *flow) notAnswered(now int64) {
	if f.awaits == 0 || now-f.awaits < f.patience(now) {
		return
	}
	f.awaits, f.silent = 0, true
	f.ln.shard.count.NotAnswered.Add(1)
	f.choice.NotAnswered(errSilent, f.key.client.Addr(), now)
}

// goesOn reports whether the client's next datagram is for the backend of the flow. Else it is for another one, since
// this one does not answer.
func (f *flow) goesOn(now int64) bool {
	if !f.silent || f.ln.shard.drain.Started() {
		return true
	}
	only := balancer.Flow{Frontend: f.ln.frontend, Client: f.key.client.Addr(), Now: now}
	return f.ln.shard.server.LB.Only(only, f.choice)
}

// asked notes a datagram of the client.
func (f *flow) asked(now int64) {
	if f.heard != 0 && f.followed < settling && now-f.active <= lasting {
		if f.followed++; f.followed == settling {
			f.setOneShot(false)
		}
	}
	f.touch(now, f.heard != 0)
	f.heard = 0
	if f.expects && f.awaits == 0 {
		f.awaits = now
		if in := f.patience(now); f.looks-now > in {
			f.later(now, in)
		}
	}
}

// onReply notes a datagram of the backend, and reports whether the client is assured because answers go on for long.
func (f *flow) onReply(now int64) bool {
	f.replied, f.silent, f.awaits = true, false, 0
	if f.heard == 0 {
		f.heard = now
	}
	if now-f.heard < lasting {
		return false
	}
	f.followed = settling
	f.setOneShot(false)
	return true
}

// setOneShot adds the flow to the shard's oneShots, or removes it.
func (f *flow) setOneShot(now bool) {
	switch oneShots := &f.ln.shard.oneShots; {
	case now == f.oneShot:
		return
	case now:
		oneShots.pushFront(f)
	default:
		oneShots.remove(f)
	}
	f.oneShot = now
}

// rests notes that the flow may have had its last answer: a DNS client asks from a new port each time.
func (f *flow) rests() {
	if !f.oneShot && f.followed != settling && f.leaving == 0 && f.fixed() == 0 {
		f.setOneShot(true)
	}
}

// resting returns the flow that has rested for longest, if a new flow is to take its place: resting flows must not take
// all sockets for 30 s. nil: no flow has to go.
func (sh *shard) resting(now int64) *flow {
	oldest, most := sh.oneShots.last, max(1, sh.places/oneShotsPart)
	if sh.oneShots.len < most || now-oldest.active < brief {
		return nil
	}
	if sh.oneShots.len > most {
		sh.pressedUntil = now + pressing // until there are fewer
	}
	return oldest
}

// conversation returns what the balancer knows a client by.
func (ln *listener) conversation(key *flowKey) uint64 {
	return ln.shard.server.LB.ConversationKey(ln.frontend, key.client, key.local, key.scope)
}

// remember has the balancer remember where the client goes on, since the flow is closed early.
func (f *flow) remember() {
	if f.fixed() > 0 || !f.choice.Live() {
		return
	}
	f.choice.Remember(&balancer.Conversation{Key: f.ln.conversation(&f.key), Answered: f.replied,
		Stream: f.assurance == known, Time: eventloop.Now()})
}

// resume chooses a backend for a new flow: the one that its client had, if that is remembered and was not silent.
func (ln *listener) resume(key *flowKey, now int64, tried *balancer.Tried) (c balancer.Choice, a assurance, err error) {
	sh := ln.shard
	if sh.server.IdleTimeout <= 0 && tried == nil {
		from := balancer.Flow{Frontend: ln.frontend, Client: key.client.Addr(), Now: now}
		if c, v, ok := sh.server.LB.Recall(from, ln.conversation(key)); ok {
			sh.count.Resumed.Add(1)
			sh.why = lb.ByConversation
			if v.Answered {
				a = known // this datagram has followed the answer
			}
			return c, a, nil
		}
	}
	c, err = ln.pick(key, now, tried)
	return c, a, err
}
