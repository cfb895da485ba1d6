package track

import (
	"cmp"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

const (
	// firstProbe is how long an endpoint may take to answer at least, as in user space (flow.timeout), and probeEvery
	// how often flows are probed.
	firstProbe = int64(250 * time.Millisecond)
	probeEvery = 50 * time.Millisecond

	// probesAtOnce is how many flows conntrack is asked about in one go.
	probesAtOnce = 1024

	// attempts is how many endpoints get the packets of a flow, one after the other, while none answers, unless its
	// Service says. Each has twice as long as the one before, as in user space.
	attempts = 4

	// remembered is how long it is known which endpoints have failed a client that does not send again: it does so
	// after a second, and after twice as long each time.
	remembered = int64(8 * time.Second)
)

// probeLoop asks conntrack about flows whose endpoints have not answered in time.
func (t *Tracker) probeLoop() {
	for first := 0; ; {
		if t.pending.Load() == 0 {
			select {
			case <-t.stop:
				return
			case <-t.wake:
			}
			continue
		}
		if !t.pause(probeEvery) {
			return
		}
		left := probesAtOnce
		for i := 0; i < flowParts && left > 0; i++ {
			left -= t.probePart(&t.parts[first], left)
			first = (first + 1) % flowParts
		}
	}
}

// probePart probes flows of a part whose time has come, some at the most, and returns how many. Probes of flows that
// need none any more do not count, so that they make room.
func (t *Tracker) probePart(p *flowPart, most int) (n int) {
	for n < most {
		p.mu.Lock()
		due := p.probes.due(t.Now())
		if due == nil {
			p.mu.Unlock()
			break
		}
		t.pending.Add(-1)
		g := *due // another takes its place when the part is unlocked
		one, known := p.flows[g.flowKey]
		p.mu.Unlock()
		if known && one.since == g.since && one.isProbed() {
			t.probeOne(&g, &one)
			n++
		}
	}
	return n
}

// probeOne asks conntrack about a flow if its endpoint should have answered by now, and no event says that it has.
func (t *Tracker) probeOne(g *probe, one *flow) {
	now, k := t.Now(), &g.flowKey
	if one.state == retrying {
		if now-one.since > remembered {
			t.giveUp(g)
		} else {
			t.probeLater(g, func(*flow) {})
		}
		return
	}
	if now-one.since < one.timeout() {
		t.probeLater(g, func(*flow) {})
		return
	}
	client, asked := k.ends()
	e, there, err := t.finder.Find(k.protocol, client, asked)
	switch {
	case err != nil:
		t.probeLater(g, func(*flow) {})
	case !there && one.state != missing: // the event that says why it has gone may not have been read
		t.probeLater(g, (*flow).miss)
	case !there: // its packet was dropped on this node
		t.giveUp(g)
	case e.Answered():
		t.learn(&e, found, 0)
	case k.protocol == lb.TCP && e.State != conntrack.TCPSynSent: // it began with no SYN
		t.giveUp(g)
	default:
		t.fail(g, one, &e)
	}
}

// probeLater probes a flow again after a time, if it is still the one that was.
func (t *Tracker) probeLater(g *probe, change func(*flow)) {
	t.change(g, func(p *flowPart, one *flow) bool {
		change(one)
		t.probeLocked(p, &probe{g.flowKey, one.since, t.Now() + firstProbe})
		return true
	})
}

// giveUp ends a flow, if it is still the one that was.
func (t *Tracker) giveUp(g *probe) {
	ended := flow{}
	t.change(g, func(_ *flowPart, one *flow) bool {
		ended = *one
		return false
	})
	ended.end()
}

// fail takes the silence of a flow's endpoint for its failure, unless the flow was answered or has ended meanwhile. If
// there is another endpoint it deletes the entry, so that the kernel asks about the client's next packet.
func (t *Tracker) fail(g *probe, was *flow, e *flows.Entry) {
	choice, others, failed := was.choice, t.hasOthers(g, was), false
	next := lb.Choice{}
	if !others {
		next = t.Balancer.Resume(choice.Service(), choice.Backend()) // it is in flight there for as long as it waits
	}
	t.change(g, func(p *flowPart, one *flow) bool {
		switch failed = one.state != answered; {
		case !failed:
		case others:
			one.retry(t.Now())
			t.probeLocked(p, &probe{g.flowKey, one.since, one.since + firstProbe})
		default:
			one.wait(next)
		}
		return true
	})
	if !failed {
		next.Done(nil)
		return
	}
	t.silent.Add(1)
	t.blame(&g.flowKey, choice)
	if others {
		if _, err := t.finder.Delete(e); err == nil {
			t.retried.Add(1)
		}
	}
}

// hasOthers reports whether a flow whose endpoint has failed may have another.
func (t *Tracker) hasOthers(g *probe, one *flow) bool {
	done, most := 1, cmp.Or(int(one.choice.Policies().ConnectAttempts), attempts)
	if one.failed != nil {
		done += one.failed.attempts
	}
	client, asked := g.ends()
	f := lb.Flow{Frontend: lb.Frontend{Protocol: g.protocol, Addr: asked}, Client: client.Addr(),
		ClientPort: client.Port(), Now: t.Now()}
	return done < most && !t.Balancer.Only(f, one.choice)
}
