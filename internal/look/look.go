package look

import (
	"encoding/binary"
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

	Age     time.Duration // since it was accepted; below 0: not known
	Idle    time.Duration // since something was passed on last, as far as Known says
	Known   bool          // Idle is
	In, Out uint64        // bytes passed on from the client, and to it, of user data
	Failed  int           // attempts that have failed

	RTT         time.Duration // smoothed, between the client and us; 0: not known
	Retransmits uint32        // segments that we have sent to the client again

	Kernel *Kernel // nil: user space forwards it
}

// Kernel is what there is to say only of what the kernel forwards.
type Kernel struct {
	Path string // that forwards it

	// Counted says that the kernel counts packets, and bytes with the headers of IP: then In and Out are these.
	Counted               bool
	PacketsIn, PacketsOut uint64
	At                    time.Time // when it has ended; zero: it is not known
}

// Ended is a connection, association or flow that has ended. Times are below 0 where they are not known.
type Ended struct {
	Info
	End       lb.End
	Wait      time.Duration    // for an endpoint, or for room at one
	Connect   time.Duration    // until an endpoint had accepted, all attempts together
	FirstByte time.Duration    // from when the client came until the endpoint had sent something
	Tried     []netip.AddrPort // endpoints that have failed, up to 8
	Why       lb.Why           // that endpoint
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

// Time is when something happened, of five bytes: it has steps of 16 us, and goes round in 208 days.
type Time [5]byte

const (
	step   = 14 // bits of ns
	around = 1<<40 - 1
	ahead  = around - 1<<32 // steps; what seems older was a little later, as clocks are read
)

// At returns the Time of a time of eventloop.Now.
func At(now int64) (t Time) {
	steps := uint64(now>>step) & around
	t[4] = byte(steps >> 32)
	binary.LittleEndian.PutUint32(t[:], uint32(steps))
	return t
}

// Age returns how long ago t was.
func (t Time) Age(now int64) time.Duration {
	was := uint64(t[4])<<32 | uint64(binary.LittleEndian.Uint32(t[:]))
	age := (uint64(now>>step) - was) & around
	if age > ahead {
		return 0
	}
	return time.Duration(age) << step
}
