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
	shown source = iota // an event or a reading of the table shows it
	gone                // an event says that it is not there any more
	found               // Find returned it after the flow began, so it is this flow's, not an older one's
)

// handle takes an event.
func (t *Tracker) handle(e *conntrack.Event) {
	from := shown
	switch e.Kind {
	case conntrack.Lost:
		flows.Notify(t.lost)
		return
	case conntrack.Destroy:
		from = gone
	}
	if r := t.current.Load(); r != nil && (from == gone || flows.IsOver(&e.Entry)) {
		r.ended(e.ID) // before its flow leaves the table: the reading could take the entry for that of a new flow
	}
	t.learn(&e.Entry, from, 0)
}

// learn takes what conntrack says of an entry, and reports whether the flow is known. number is that of the reading of
// the table which has it; 0: no reading has.
func (t *Tracker) learn(e *flows.Entry, from source, number uint32) bool {
	k := keyOf(e.Protocol, e.Src, e.Dst)
	p := t.part(&k)
	p.mu.Lock()
	one, known := p.flows[k]
	if !known || one.state == retrying {
		p.mu.Unlock()
		return known
	}
	replied, ended := e.Answered(), from == gone || flows.IsOver(e)
	if ended && from != found && !one.endsBy(e, &k) {
		one.endsOther(e)
		p.flows[k] = one
		p.mu.Unlock()
		return true
	}
	before, forgotten := one, replied && one.endsWithAnswer(&k)
	if ended || forgotten {
		t.removeLocked(p, &k, &one)
	} else {
		if replied {
			one.answer(e.ID)
		}
		one.seen = cmp.Or(number, one.seen)
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
			_, _ = t.finder.Delete(e)
		}
	case forgotten:
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
	case k.isUDP() && !e.Answered() && one.choice.ExpectsAnswers():
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
