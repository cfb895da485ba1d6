package queue

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// What user space knows of flows that the kernel forwards comes from conntrack: its events say when an endpoint has
// answered or refused, and when a flow has ended; who has not answered in time is looked at; and the whole table is
// read when events were lost, and now and then.

const (
	// firstLook is how long an endpoint may take to answer, as in user space, and lookEvery how often we look.
	firstLook = int64(250 * time.Millisecond)
	lookEvery = 50 * time.Millisecond

	// atOnce is how many flows are looked at in one go.
	atOnce = 1024
)

// following is what follows flows.
type following struct {
	flowTable
	services services
	reached  reached
	events   *conntrack.Events
	table    *conntrack.Conn // to read it
	entries  *conntrack.Conn // to look at single ones, and delete them
	cannot   error           // why flows are not followed

	read chan struct{} // has a value when the table is to be read
	lost chan struct{} // has a value when events were
	stop chan struct{}
	all  sync.WaitGroup
	turn uint32 // readings

	reading atomic.Pointer[reading] // nil: none is under way

	answered, refused, silent, retried atomic.Uint64
}

// errNoEvents says what a kernel setting means.
var errNoEvents = errors.New("conntrack has no events (net.netfilter.nf_conntrack_events is 0)")

// follow begins to follow flows, in the network namespace of the calling thread.
func (s *Server) follow() (err error) {
	f := &s.following
	f.cannot = nil // goroutines that begin here read it
	if f.read == nil {
		f.wake, f.read, f.lost = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	}
	if on, err := netfilter.ReadNumber("/proc/sys/net/netfilter/nf_conntrack_events"); err == nil && on == 0 {
		return errNoEvents
	}
	if f.table, err = conntrack.Open(); err != nil {
		return err
	}
	if f.entries, err = conntrack.Open(); err != nil {
		f.table.Close()
		return err
	}
	if f.events, err = conntrack.Listen(conntrack.Turn|conntrack.Destroy|conntrack.Lost, s.handle); err == nil {
		err = f.events.All()
	}
	if err != nil {
		f.table.Close()
		f.entries.Close()
		return fmt.Errorf("follow flows: %w", err)
	}
	f.stop = make(chan struct{})
	f.all.Go(s.probeLoop)
	f.all.Go(s.readOn)
	return nil
}

// unfollow ends that, and gives back what flows have: the process that follows them next reads the table.
func (s *Server) unfollow() error {
	f := &s.following
	if f.cannot != nil || f.stop == nil {
		return nil
	}
	close(f.stop)
	f.all.Wait()
	f.stop = nil
	err := f.events.Close()
	f.table.Close()
	f.entries.Close()
	s.endAll(func(*flow) bool { return true })
	return err
}

// Cannot returns why nothing is known of the flows that the server has chosen for: they are not in flight then. nil:
// they are followed.
func (s *Server) Cannot() error { return s.following.cannot }

// Read has the table of conntrack read, as it is at the start, so that flows are known that began before: when Services
// have come to the engines. It does not wait.
func (s *Server) Read() { notify(s.following.read) }

// notify gives a channel with room for one a value, unless it has one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// keep keeps a flow that has an endpoint. One that has no room is not in flight.
func (s *Server) keep(k *flowKey, one *flow) {
	some, _ := one.choice.Policies().Logs() // a choice that has ended has none
	why := one.why                          // not known: it was found in conntrack's table
	if s.track(k, one); some && why != lb.NotKnown && s.Chose != nil {
		client, asked := k.ends()
		s.Chose(k.protocol, client, asked, why)
	}
}

func (s *Server) track(k *flowKey, one *flow) {
	look := firstLook
	if k.isUDP() {
		look = 0
	}
	if s.following.cannot != nil {
		one.end()
		return
	}
	done, lack := s.following.put(k, one, look)
	if done {
		return
	}
	if lack == ofService {
		s.Balancer.ExceedsShare(one.service(), 1)
	}
	one.end()
}

// handle takes an event.
func (s *Server) handle(e *conntrack.Event) {
	if e.Kind == conntrack.Lost {
		notify(s.following.lost)
		return
	}
	ended := e.Kind == conntrack.Destroy
	if r := s.following.reading.Load(); r != nil && (ended || over(&e.Entry)) {
		r.ended(e.ID) // before its flow has gone, and would be found as another's
	}
	s.learn(&e.Entry, ended, false, 0)
}

// learn takes what conntrack says of an entry, in a reading of its table unless that is 0, and reports whether the flow
// is known. found: it was looked for since the flow began, when what had the same ports before was gone.
func (s *Server) learn(e *conntrack.Entry, gone, found bool, reading uint32) bool {
	f, k := &s.following, keyOf(e.Protocol, e.Src, e.Dst)
	p, hash := f.part(&k)
	p.mu.Lock()
	one := p.flows.get(&k, hash)
	if one == nil || one.state == retrying {
		p.mu.Unlock()
		return one != nil
	}
	replied, ended := e.Status&conntrack.SeenReply != 0, gone || over(e)
	before, enough := *one, replied && one.isKnownEnough(&k)
	switch {
	case ended && !found && !one.endsBy(e, k.isUDP()):
		if one.replaced && e.Replies == one.choice.Backend() {
			one.replaced = false
		}
		p.mu.Unlock()
		return true
	case ended, enough:
		f.remove(p, &k, hash, &before)
	default:
		if replied {
			one.answer(e.ID)
		}
		one.seen = cmp.Or(reading, one.seen)
	}
	p.mu.Unlock()
	if replied && before.state != answered {
		s.answer(&k, &before)
	}
	switch {
	case ended:
		s.end(&k, &before, e)
		if k.protocol == lb.SCTP && !gone { // else the next INIT from this port would go there without a question
			_, _ = f.entries.Delete(e)
		}
	case enough:
		before.end()
	}
	return true
}

// isKnownEnough reports whether a connection that was answered is followed no longer: where it does not matter what is
// in flight the kernel does not say when it ends (nftables.Ask.Events).
func (one *flow) isKnownEnough(k *flowKey) bool {
	return k.isTCP() && !one.choice.CountsInFlight()
}

// endsBy reports whether the end of an entry is that of a flow, and not of one before that had the same ports.
func (one *flow) endsBy(e *conntrack.Entry, udp bool) bool {
	switch {
	case e.Replies != one.choice.Backend():
		return false
	case one.state == answered || e.ID == 0:
		return one.id == e.ID
	case udp:
		return !one.replaced
	}
	return e.Status&conntrack.SeenReply == 0 // else its answer would have been seen
}

// over reports whether a connection has ended whose entry is still there for late packets.
func over(e *conntrack.Entry) bool {
	switch e.Protocol {
	case lb.TCP:
		return e.State == conntrack.TCPTimeWait || e.State == conntrack.TCPClose
	case lb.SCTP:
		return e.State == conntrack.SCTPClosed && e.Status&conntrack.SeenReply != 0
	}
	return false
}

// answer notes that the endpoint of a flow has answered.
func (s *Server) answer(k *flowKey, one *flow) {
	s.following.answered.Add(1)
	one.choice.Answered()
	if !k.isUDP() { // of these it is known at the end only
		now := s.Now()
		s.following.reached.add(one, k, now)
		if one.choice.CountsInFlight() { // else it may be known late
			one.choice.Took(now-one.since, now)
		}
	}
}

// end ends a flow, by what was seen last.
func (s *Server) end(k *flowKey, one *flow, e *conntrack.Entry) {
	replied := e.Status&conntrack.SeenReply != 0
	switch {
	case k.protocol == lb.TCP && e.State == conntrack.TCPClose && !replied:
		s.refuse(k, one, e)
	case k.isUDP() && !replied && one.choice.ExpectsAnswers():
		s.following.silent.Add(1)
		one.choice.NotAnswered(syscall.ETIMEDOUT, addrOf(k.client), s.Now())
	}
	one.end()
}

// refuse ends a connection of which a reset was the second packet, with which the kernel ends the entry at once. Whose
// that was it says only if it counts packets. A client that resets what it has opened must not have endpoints ejected
// that serve others well: so else each is believed once in a while only.
func (s *Server) refuse(k *flowKey, one *flow, e *conntrack.Entry) {
	if e.Counted() && e.Out.Packets == 0 {
		return
	}
	s.following.refused.Add(1)
	choice := one.choice
	if one.choice = (lb.Choice{}); e.Counted() {
		choice.Failed(syscall.ECONNREFUSED, s.Now())
		return
	}
	choice.NotAnswered(syscall.ECONNREFUSED, addrOf(k.client), s.Now())
	choice.Done(nil)
}

// endAll ends flows.
func (s *Server) endAll(which func(*flow) bool) {
	var some []knownFlow
	for i := range s.following.parts {
		p := &s.following.parts[i]
		some = some[:0]
		p.mu.Lock()
		for n := p.flows.size; n > 0; n-- { // backwards: the last takes the place of what is removed
			if one := *p.flows.at(uint16(n)); which(&one.flow) {
				s.following.remove(p, &one.key, one.hash, &one.flow)
				some = append(some, one)
			}
		}
		p.mu.Unlock()
		for i := range some {
			some[i].flow.end()
		}
	}
}
