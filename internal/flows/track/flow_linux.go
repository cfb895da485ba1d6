package track

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/lb"
)

// state is what a flow waits for. TestScripts allows these changes and no others:
//
//	new -> asked                          by its first packet (Choose), or by an entry without an answer (adopt)
//	new -> answered                       by an entry with an answer (adopt)
//	asked -> missing                      conntrack had no entry when the flow was probed (miss)
//	asked, missing -> retrying            the endpoint was silent, and there is another (retry)
//	asked, missing -> patient             the endpoint was silent, and there is no other (wait)
//	asked, missing, patient -> answered   the endpoint has answered (answer)
//	retrying -> asked                     the client has sent again, and got another endpoint (Choose)
//	any other -> asked                    another flow begins with the same addresses and ports (Choose)
//
// A flow that ends leaves the table, in any state.
type state uint8

const (
	asked    state = iota // its endpoint was chosen
	missing               // asked, and conntrack had no entry at a probe
	patient               // asked; it may take as long as it takes
	retrying              // its next packet gets another endpoint
	answered              // its endpoint has answered
)

var states = [...]string{asked: "asked", missing: "missing", patient: "patient", retrying: "retrying",
	answered: "answered"}

// String returns the state's name.
func (s state) String() string { return states[s] }

// flow is what is known of one. Times are on the clock of the Balancer. Always true of a flow in the table:
//
//   - choice is valid unless the state is retrying
//   - id is 0 unless the state is answered
//   - failed is not nil if the state is retrying
//   - replaced is false unless the flow is one of UDP, and asked or answered
type flow struct {
	choice   lb.Choice
	failed   *failed // nil: no endpoint has failed
	since    int64   // when it got its endpoint, or lost it
	id       uint32  // of conntrack's entry
	seen     uint32  // the number of the last reading of conntrack's table that had it
	state    state
	why      lb.Why // why it has its endpoint
	replaced bool   // the end of an older flow with the same addresses and endpoint is still to come
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
func (one *flow) String() string { return fmt.Sprintf("%s %s", one.state, one.backend()) }

// backend returns the endpoint that a flow has, or had last.
func (one *flow) backend() netip.AddrPort {
	if one.state == retrying {
		return one.failed.last
	}
	return one.choice.Backend()
}

// begin gives the flow an endpoint.
func (one *flow) begin(choice lb.Choice, now int64) {
	one.state, one.choice, one.since = asked, choice, now
}

// answer notes conntrack's entry, which has a reply.
func (one *flow) answer(id uint32) { one.state, one.id = answered, id }

// miss notes that conntrack had no entry when the flow was probed. A flow that was answered meanwhile stays so.
func (one *flow) miss() {
	if one.state == asked {
		one.state = missing
	}
}

// retry gives the next packet another endpoint.
func (one *flow) retry(now int64) {
	if one.failed == nil {
		one.failed = new(failed)
	}
	one.failed.add(one.choice)
	one.state, one.choice, one.since = retrying, lb.Choice{}, now
}

// wait lets the flow wait for its endpoint, for which again is another choice of the same.
func (one *flow) wait(again lb.Choice) { one.state, one.choice = patient, again }

// isProbed reports whether a flow is probed until its endpoint has answered.
func (one *flow) isProbed() bool {
	return one.state == asked || one.state == missing || one.state == retrying
}

// service returns the Service that a flow is of.
func (one *flow) service() lb.ID {
	if one.state == retrying {
		return one.failed.service
	}
	return one.choice.Service()
}

// isFollowed reports whether a policy needs to know what happens to a UDP flow.
func (one *flow) isFollowed() bool {
	logs, _ := one.choice.Policies().Logs()
	return logs || one.choice.CountsInFlight() || one.choice.ExpectsAnswers()
}

// endsWithAnswer reports whether a connection is followed until it is answered: where it does not matter what is in
// flight, there is no event at the end of the connection, only later at that of its entry (nftables.Ask.Events).
func (one *flow) endsWithAnswer(k *flowKey) bool { return k.isTCP() && !one.choice.CountsInFlight() }

// endsBy reports whether an entry that has ended, or whose connection has, is that of the flow, and not of an older one
// that had the same ports.
func (one *flow) endsBy(e *flows.Entry, k *flowKey) bool {
	switch {
	case e.Replies != one.choice.Backend():
		return false
	case one.state == answered || e.ID == 0:
		return one.id == e.ID
	case k.isUDP():
		return !one.replaced
	}
	return !e.Answered() // else its answer would have been seen
}

// endsOther notes the end of the entry of an older flow.
func (one *flow) endsOther(e *flows.Entry) {
	if e.Replies == one.choice.Backend() {
		one.replaced = false
	}
}

// timeout returns how long the endpoint may take to answer: firstProbe, or the connect-timeout of its Service if that
// is longer; and twice as long after each endpoint that has failed, up to a minute.
func (one *flow) timeout() int64 {
	n := 0
	if one.failed != nil {
		n = one.failed.attempts
	}
	most := max(firstProbe, one.choice.Policies().ConnectTimeout)
	return min(most<<min(n, 8), max(most, int64(time.Minute)))
}

// end gives back what a flow has, which is not in the table any more.
func (one *flow) end() { one.choice.Done(nil) }
