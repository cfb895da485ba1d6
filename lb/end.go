package lb

import "sync/atomic"

// End says how a connection has ended. Its String is the two letters of HAProxy's log. The first is who has ended it:
// the client (C), the endpoint (S), we for lack of something (R) or by a limit (P), an operator or a policy (K), since
// the endpoint has left (D), or a timeout of the client (c) or of the endpoint (s). The second is what it was at: in a
// queue (Q), connecting (C), passing data (D), or the last of it (L). "--" is as it should be. See the manual of
// HAProxy, 8.5. Where the kernel forwards and does not say who has ended it, "-" stands for who.
type End uint8

// The ends.
const (
	Normal          End = iota
	ClientConnect       // the client has left, or was reset, before an endpoint had accepted
	ClientQueue         // the same while it waited
	ClientData          // reset by the client
	ServerConnect       // no endpoint has accepted, or there is none
	ServerTimeout       // the same, the last one being silent
	QueueTimeout        // no endpoint in time, or no room at one
	QueueFull           // as many wait as may
	Limited             // beyond a limit or a share
	ServerData          // reset by the endpoint
	NoResource          // no port or descriptor
	Evicted             // a flow that made room for others
	EndpointLeft        // its endpoint has left the Service
	IdleEnd             // idle for too long
	ClientHalf          // the endpoint has gone on for too long after the client's end
	ServerHalf          // the client has gone on for too long after the endpoint's end
	TooOld              // it has lasted for too long
	Killed              // the process ends, or it leads back to us
	KilledInConnect     // the same before an endpoint had accepted
	Reset               // of what the kernel forwards: by one of them
	HalfTimeout         // the same: one has gone on for too long after the other's end
)

// ends is how many are counted: those of what user space relays.
const ends = Reset

// endings are what is said of each: HAProxy's letters, who has reset the connection, and why or at what.
var endings = [...]struct{ letters, side, reason string }{
	Normal:          {"--", "", ""},
	ClientConnect:   {"CC", "client", "connecting"},
	ClientQueue:     {"CQ", "client", "waiting"},
	ClientData:      {"CD", "client", "established"},
	ServerConnect:   {"SC", sluice, "no_endpoint"},
	ServerTimeout:   {"sC", sluice, "endpoint_silent"},
	QueueTimeout:    {"sQ", sluice, "wait_timeout"},
	QueueFull:       {"PQ", sluice, "queue_full"},
	Limited:         {"PR", sluice, "limited"},
	ServerData:      {"SD", "endpoint", "established"},
	NoResource:      {"RC", sluice, "no_resource"},
	Evicted:         {"RD", sluice, "evicted"},
	EndpointLeft:    {"DD", sluice, "endpoint_left"},
	IdleEnd:         {"cD", sluice, "idle_timeout"},
	ClientHalf:      {"cL", sluice, "client_half_close_timeout"},
	ServerHalf:      {"sL", sluice, "server_half_close_timeout"},
	TooOld:          {"KD", sluice, "max_connection_duration"},
	Killed:          {"KD", sluice, "killed"},
	KilledInConnect: {"KC", sluice, "killed_connecting"},
	Reset:           {"-D", "", ""},
	HalfTimeout:     {"-L", "", ""},
}

const sluice = "sluice"

// String returns the two letters.
func (e End) String() string { return endings[int(e)%len(endings)].letters }

// Side returns who has reset the connection: client, endpoint or sluice; empty: no one.
func (e End) Side() string { return endings[int(e)%len(endings)].side }

// Reason returns why Sluice has, or what the connection was at when a side has.
func (e End) Reason() string { return endings[int(e)%len(endings)].reason }

// Ends counts connections by how they have ended, but for Normal.
type Ends [ends]uint64

type endCounts [ends]atomic.Uint64

// Ended counts how the connection of a has ended. It allocates at the first one of a service that does not end as it
// should.
func (a Admission) Ended(e End) {
	if a.of != nil {
		a.of.ended(e)
	}
}

// Ended counts how a connection has ended that had no Admission.
func (b *Balancer) Ended(f Frontend, e End) {
	snap := b.load()
	if at, ok := snap.table.index.find(&f); ok {
		snap.service(at.slot).state.ended(e)
	}
}

func (s *state) ended(e End) {
	if e == Normal {
		return
	}
	counts := s.ends.Load()
	if counts == nil {
		s.ends.CompareAndSwap(nil, new(endCounts))
		counts = s.ends.Load()
	}
	counts[e].Add(1)
}

// allEnds returns what was counted; nil: nothing.
func (s *state) allEnds() *Ends {
	counts := s.ends.Load()
	if counts == nil {
		return nil
	}
	all := new(Ends)
	for i := range counts {
		all[i] = counts[i].Load()
	}
	return all
}

// resumeEnds goes on with what another Balancer has counted.
func (s *state) resumeEnds(all *Ends) {
	if all == nil {
		return
	}
	counts := new(endCounts)
	for i := range all {
		counts[i].Store(all[i])
	}
	s.ends.Store(counts)
}
