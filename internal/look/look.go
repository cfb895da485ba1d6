package look

import (
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// Budget is how long a loop may be kept by one call, in ns. Events wait no longer.
const Budget = int64(200 * time.Microsecond)

// End is the position behind the last connection of a loop.
const End = -1

// State is what a connection or flow does.
type State string

// The states.
const (
	Dialling    State = "dialling"    // its endpoint has not answered
	Held        State = "held"        // it waits for an endpoint
	Queued      State = "queued"      // it waits for room at an endpoint
	Established State = "established" // the endpoint has answered
	HalfClosed  State = "half-closed" // one side has ended its stream
	Unreplied   State = "unreplied"   // a flow whose endpoint has not answered
	Leaving     State = "leaving"     // a flow whose endpoint is gone; late answers pass
	Closing     State = "closing"     // an association of which one side shuts down
)

// States are all of them.
var States = []State{Dialling, Held, Queued, Established, HalfClosed, Unreplied, Leaving, Closing}

// Info is one connection, association or flow.
type Info struct {
	Protocol lb.Protocol
	Client   netip.AddrPort
	Asked    netip.AddrPort // what the client has asked for; not valid: it is not known any more
	Service  lb.ID          // zero: it has gone
	Backend  netip.AddrPort // not valid: there is none yet
	State    State
	Loop     int

	Age     time.Duration // since it was accepted
	Idle    time.Duration // since something was passed on last, as far as Known says
	Known   bool          // Idle is
	In, Out uint64        // bytes passed on from the client, and to it, of user data
	Failed  int           // attempts that have failed

	RTT         time.Duration // smoothed, between the client and us; 0: not known
	Retransmits uint32        // segments that we have sent to the client again
}

// Ended is a connection, association or flow that has ended. Times are below 0 where they are not known.
type Ended struct {
	Info
	Code      Code
	Wait      time.Duration    // for an endpoint, or for room at one
	Connect   time.Duration    // until an endpoint had accepted, all attempts together
	FirstByte time.Duration    // from then until it has sent something
	Tried     []netip.AddrPort // endpoints that have failed, up to 8
	Scheduler string           // that has chosen the endpoint, unless the client had one already; empty: round robin
}

// Sample has one of some be logged, of those that have ended as they should. The zero Sample begins.
type Sample struct{ passed int }

// Next reports whether the next one is logged, if one of so many is; 0: all are.
func (s *Sample) Next(of int) bool {
	if s.passed++; s.passed < of {
		return false
	}
	s.passed = 0
	return true
}

// Code says how something has ended, in the two letters of HAProxy's log. The first is who has ended it: the client
// (C), the endpoint (S), we for lack of something (R) or by a limit (P), an operator or a policy (K), since the
// endpoint has left (D), or a timeout of the client (c) or of the endpoint (s). The second is what it was at: in a
// queue (Q), connecting (C), passing data (D), or the last of it (L). "--" is as it should be. See the manual of
// HAProxy, 8.5.
type Code string

// The codes.
const (
	Normal          Code = "--"
	ClientConnect   Code = "CC" // the client has left, or was reset, before an endpoint had accepted
	ClientQueue     Code = "CQ" // the same while it waited
	ClientData      Code = "CD" // reset by the client
	ServerConnect   Code = "SC" // no endpoint has accepted, or there is none
	ServerTimeout   Code = "sC" // the same, the last one being silent
	QueueTimeout    Code = "sQ" // no endpoint in time, or no room at one
	QueueFull       Code = "PQ" // as many wait as may
	Limited         Code = "PR" // beyond a limit or a share
	ServerData      Code = "SD" // reset by the endpoint
	NoResource      Code = "RC" // no port or descriptor
	Evicted         Code = "RD" // a flow that made room for others
	EndpointLeft    Code = "DD" // its endpoint has left the Service
	Idle            Code = "cD" // idle for too long
	ClientHalf      Code = "cL" // the endpoint has gone on for too long after the client's end
	ServerHalf      Code = "sL" // the client has gone on for too long after the endpoint's end
	Killed          Code = "KD" // it has lasted for too long, or the process ends
	KilledInConnect Code = "KC" // the process ends
)

// Query says which are looked for. What is zero is not asked for.
type Query struct {
	Namespace, Name string
	Client          netip.Prefix
	Backend         netip.AddrPort // port 0: any
	Protocol        lb.Protocol    // if ByProtocol
	ByProtocol      bool
}

// Has reports whether i, whose Client's port need not be set yet, is looked for.
func (q *Query) Has(i *Info) bool {
	return (q.Namespace == "" || q.Namespace == i.Service.Namespace) && (q.Name == "" || q.Name == i.Service.Name) &&
		(!q.Client.IsValid() || q.Client.Contains(i.Client.Addr().Unmap())) &&
		(!q.Backend.Addr().IsValid() || q.Backend.Addr() == i.Backend.Addr()) &&
		(q.Backend.Port() == 0 || q.Backend.Port() == i.Backend.Port())
}

// Time is when something happened, of four bytes: it has steps of some 4 ms, and goes round in 208 days.
type Time uint32

const step = 22 // bits

// At returns the Time of a time of eventloop.Now.
func At(now int64) Time { return Time(now >> step) }

// Age returns how long ago t was.
func (t Time) Age(now int64) time.Duration { return time.Duration(At(now)-t) << step }
