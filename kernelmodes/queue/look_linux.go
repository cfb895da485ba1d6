package queue

import (
	"cmp"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// attempts is how many endpoints get the packets of a flow, one after the other, while none answers, unless its Service
// says. Each has twice as long as the one before, as in user space.
const attempts = 4

// remembered is how long it is known which endpoints have failed a client that does not send again: it does so after a
// second, and after twice as long each time.
const remembered = int64(8 * time.Second)

// probeLoop asks conntrack about flows whose endpoints have not answered in time.
func (s *Server) probeLoop() {
	f := &s.following
	for first := 0; ; {
		if f.young.Load() == 0 {
			select {
			case <-f.stop:
				return
			case <-f.wake:
			}
			continue
		}
		if !s.pause(lookEvery) {
			return
		}
		left := atOnce
		for i := 0; i < flowParts && left > 0; i++ {
			left -= s.lookAt(&f.parts[first], left)
			first = (first + 1) % flowParts
		}
	}
}

// lookAt looks at flows of a part whose time has come, some at the most, and returns how many.
func (s *Server) lookAt(p *flowPart, most int) (n int) {
	f := &s.following
	for ; n < most; n++ {
		p.mu.Lock()
		due := p.young.due(s.Now())
		if due == nil {
			p.mu.Unlock()
			break
		}
		f.young.Add(-1)
		g, one := *due, flow{} // others take the place of both when the part is unlocked
		_, hash := f.part(&g.flowKey)
		known := p.flows.get(&g.flowKey, hash)
		looks := known != nil && known.since == g.since && known.isVisited()
		if looks {
			one = *known
		}
		p.mu.Unlock()
		if looks {
			s.lookAtOne(&g, &one)
		}
	}
	return n
}

// lookAtOne looks at a flow whose endpoint has not answered as far as is known.
func (s *Server) lookAtOne(g *probe, one *flow) {
	now, k := s.Now(), &g.flowKey
	if one.state == retrying {
		if now-one.since > remembered {
			s.giveUp(g)
		} else {
			s.lookAgain(g, func(*flow) {})
		}
		return
	}
	if now-one.since < one.timeout() {
		s.lookAgain(g, func(*flow) {})
		return
	}
	client, asked := k.ends()
	e, there, err := s.following.entries.Find(k.protocol, client, asked)
	switch {
	case err != nil, !there && one.state != missing: // the event that says why it has gone may not have been read
		s.lookAgain(g, func(one *flow) { one.visited(err != nil) })
	case !there: // its packet was dropped on this node
		s.giveUp(g)
	case e.Status&conntrack.SeenReply != 0:
		s.learn(&e, false, true, 0)
	case k.protocol == lb.TCP && e.State != conntrack.TCPSynSent: // it began with no SYN
		s.giveUp(g)
	default:
		s.fail(g, one, &e)
	}
}

// timeout returns how long the endpoint may take to answer.
func (one *flow) timeout() int64 {
	n := 0
	if one.failed != nil {
		n = one.failed.attempts
	}
	most := max(firstLook, one.choice.Policies().ConnectTimeout)
	return min(most<<min(n, 8), max(most, int64(time.Minute)))
}

// lookAgain has a flow be looked at again after a time, if it is still the one that was.
func (s *Server) lookAgain(g *probe, change func(*flow)) {
	p, hash := s.following.part(&g.flowKey)
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.flows.get(&g.flowKey, hash); one != nil && one.since == g.since {
		change(one)
		s.following.look(p, &probe{g.flowKey, one.since, s.Now() + firstLook})
	}
}

// giveUp ends a flow, if it is still the one that was.
func (s *Server) giveUp(g *probe) {
	p, hash := s.following.part(&g.flowKey)
	p.mu.Lock()
	ended := flow{}
	if one := p.flows.get(&g.flowKey, hash); one != nil && one.since == g.since {
		ended = *one
		s.following.remove(p, &g.flowKey, hash, &ended)
	}
	p.mu.Unlock()
	ended.end()
}

// fail says that the endpoint of a flow has failed, which has not answered. Where there is another its entry is
// deleted, so that what the client sends next is asked about again.
func (s *Server) fail(g *probe, was *flow, e *conntrack.Entry) {
	s.following.silent.Add(1)
	choice, k := was.choice, &g.flowKey
	others := s.hasOthers(g, was)
	next := lb.Choice{}
	if !others {
		next = s.Balancer.Resume(choice.Service(), choice.Backend()) // it is in flight there for as long as it waits
	}
	p, hash := s.following.part(&g.flowKey)
	p.mu.Lock()
	one := p.flows.get(&g.flowKey, hash)
	if one == nil || one.since != g.since || one.state == answered { // it was answered, or has ended, meanwhile
		p.mu.Unlock()
		next.Done(nil)
		return
	}
	if others {
		one.retry(s.Now())
		s.following.look(p, &probe{g.flowKey, one.since, one.since + firstLook})
	} else {
		one.wait(next)
	}
	p.mu.Unlock()
	s.blame(k, choice)
	if others {
		if _, err := s.following.entries.Delete(e); err == nil {
			s.following.retried.Add(1)
		}
	}
}

// mostAttempts returns how many there may be.
func mostAttempts(c lb.Choice) int { return cmp.Or(int(c.Policies().ConnectAttempts), attempts) }

// hasOthers reports whether a flow whose endpoint has failed may have another.
func (s *Server) hasOthers(g *probe, one *flow) bool {
	done, most := 1, mostAttempts(one.choice)
	if one.failed != nil {
		done += one.failed.attempts
	}
	client, asked := g.ends()
	f := lb.Flow{Frontend: lb.Frontend{Protocol: g.protocol, Addr: asked}, Client: client.Addr(),
		ClientPort: client.Port(), Now: s.Now()}
	return done < most && !s.Balancer.Only(f, one.choice)
}
