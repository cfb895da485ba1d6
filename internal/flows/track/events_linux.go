package track

import (
	"cmp"
	"syscall"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// source is how an entry came to be known.
type source uint8

const (
	changed source = iota // by an event: it is there
	gone                  // by an event: it is not there any more
	read                  // by a reading of the table
	found                 // it was looked for since its flow began, when what had the same ports before was gone
)

// handle takes an event.
func (t *Tracker) handle(e *conntrack.Event) {
	from := changed
	switch e.Kind {
	case conntrack.Lost:
		notify(t.lost)
		return
	case conntrack.Destroy:
		from = gone
	}
	if r := t.reading.Load(); r != nil && (from == gone || flows.IsOver(&e.Entry)) {
		r.ended(e.ID) // before its flow has gone, and would be found as another's
	}
	t.learn(&e.Entry, from, 0)
}

// learn takes what conntrack says of an entry, in a reading of its table unless that is 0, and reports whether the flow
// is known.
func (t *Tracker) learn(e *flows.Entry, from source, reading uint32) bool {
	k := keyOf(e.Protocol, e.Src, e.Dst)
	p := t.part(&k)
	p.mu.Lock()
	one, known := p.flows[k]
	if !known || one.state == retrying {
		p.mu.Unlock()
		return known
	}
	replied, ended := e.Status&conntrack.SeenReply != 0, from == gone || flows.IsOver(e)
	if ended && from != found && !one.endsBy(e, &k) {
		one.endsOther(e)
		p.flows[k] = one
		p.mu.Unlock()
		return true
	}
	before, enough := one, replied && one.endsWithAnswer(&k)
	if ended || enough {
		t.removeLocked(p, &k, &one)
	} else {
		if replied {
			one.answer(e.ID)
		}
		one.seen = cmp.Or(reading, one.seen)
		p.flows[k] = one
	}
	p.mu.Unlock()
	if replied && before.state != answered {
		t.noteAnswer(&k, &before)
	}
	switch {
	case ended:
		t.end(&k, &before, e)
		if k.protocol == lb.SCTP && from != gone { // else the next INIT from its port would go to this endpoint
			_, _ = t.entries.Delete(e)
		}
	case enough:
		before.end()
	}
	return true
}

// noteAnswer notes that the endpoint of a flow has answered.
func (t *Tracker) noteAnswer(k *flowKey, one *flow) {
	t.answered.Add(1)
	one.choice.Answered()
	if !k.isUDP() { // the answer to a datagram is reported at the end only
		now := t.Now()
		t.reachable.add(one.service(), k.host(), now)
		if one.choice.CountsInFlight() { // else it may be reported late
			one.choice.Took(now-one.since, now)
		}
	}
}

// end ends a flow, by what was seen last.
func (t *Tracker) end(k *flowKey, one *flow, e *flows.Entry) {
	switch {
	case flows.IsRefused(e):
		t.refuse(k, one, e)
	case k.isUDP() && e.Status&conntrack.SeenReply == 0 && one.choice.ExpectsAnswers():
		t.silent.Add(1)
		one.choice.NotAnswered(syscall.ETIMEDOUT, addrOf(k.client), t.Now())
	}
	one.end()
}

// refuse notes that a reset was the second packet of a connection. Who sent it, the kernel says only if it counts
// packets. Else a client is believed once in an interval: one that resets its own connections must not eject endpoints.
func (t *Tracker) refuse(k *flowKey, one *flow, e *flows.Entry) {
	if e.Counted() && e.Out.Packets == 0 {
		return
	}
	t.refused.Add(1)
	if !e.Counted() {
		one.choice.NotAnswered(syscall.ECONNREFUSED, addrOf(k.client), t.Now())
		return
	}
	one.choice.Failed(syscall.ECONNREFUSED, t.Now())
	one.choice = lb.Choice{}
}
