package queue

import (
	"fmt"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// state is what a flow waits for. The transitions are methods of flow:
//
//	asked -> answered              the endpoint has answered
//	asked <-> missing              conntrack has no entry, or has one again
//	asked, missing -> retrying     the endpoint was silent, and there is another
//	asked, missing -> patient      the endpoint was silent, and there is no other
//	patient -> answered
//
// A flow that ends, and a retrying one whose client sends again, leaves the table.
type state uint8

const (
	asked    state = iota // its endpoint was chosen
	missing               // asked, and conntrack had no entry at the last visit
	patient               // asked; it may take as long as it takes
	retrying              // its next packet gets another endpoint
	answered              // its endpoint has answered
)

var states = [...]string{asked: "asked", missing: "missing", patient: "patient", retrying: "retrying",
	answered: "answered"}

// String returns the state's name.
func (s state) String() string { return states[s] }

// flow is what is known of one. Times are on the clock of the Balancer. Always true:
//
//   - choice is valid unless the state is retrying
//   - id is 0 unless the state is answered
//   - failed is not nil if the state is retrying
type flow struct {
	choice   lb.Choice
	failed   *failed // nil: no endpoint has failed
	since    int64   // when it got its endpoint, or lost it
	id       uint32  // of conntrack's entry
	seen     uint32  // the last reading of conntrack's table that had it
	state    state
	why      lb.Why // it has its endpoint
	replaced bool   // an older UDP flow had the same addresses, and its end event was lost
}

// failed is what a flow has behind it.
type failed struct {
	tried    lb.Tried
	last     netip.AddrPort
	service  lb.ID
	attempts int
}

// add adds the endpoint of a choice.
func (f *failed) add(c lb.Choice) {
	f.tried.Add(c)
	f.last, f.service = c.Backend(), c.Service()
	f.attempts++
}

// String is for tests and logs.
func (one *flow) String() string {
	at := one.choice.Backend()
	if one.state == retrying {
		at = one.failed.last
	}
	return fmt.Sprintf("%s %s", one.state, at)
}

// answer notes conntrack's entry, which has a reply.
func (one *flow) answer(id uint32) { one.state, one.id = answered, id }

// visited notes whether conntrack had an entry at a visit. A flow that was answered meanwhile stays so.
func (one *flow) visited(there bool) {
	switch {
	case one.state == asked && !there:
		one.state = missing
	case one.state == missing && there:
		one.state = asked
	}
}

// retry has the next packet get another endpoint, from now on.
func (one *flow) retry(now int64) {
	if one.failed == nil {
		one.failed = new(failed)
	}
	one.failed.add(one.choice)
	one.state, one.choice, one.since = retrying, lb.Choice{}, now
}

// wait has the flow wait for its endpoint, for which again is another choice of the same.
func (one *flow) wait(again lb.Choice) { one.state, one.choice = patient, again }

// isVisited reports whether it is visited until its endpoint has answered.
func (one *flow) isVisited() bool {
	return one.state == asked || one.state == missing || one.state == retrying
}

// service returns the Service that a flow is of.
func (one *flow) service() lb.ID {
	if one.state == retrying {
		return one.failed.service
	}
	return one.choice.Service()
}

// endsUnheard reports whether no policy needs to know what happens to a UDP flow.
func (one *flow) endsUnheard() bool {
	logs, _ := one.choice.Policies().Logs()
	return !logs && !one.choice.CountsInFlight() && !one.choice.ExpectsAnswers()
}

// end gives back what a flow has, which is not in the table any more.
func (one *flow) end() { one.choice.Done(nil) }
