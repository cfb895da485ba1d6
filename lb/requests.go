package lb

import "cmp"

// Policies are what a Service requests beyond its API object: its annotations sluice.io/..., typed and within their
// ranges. Each zero value requests nothing, so that what is given for all Services holds, or else the default; below 0
// is none, of what is on by default, or for all. Times are in nanoseconds. Those of a Service are immutable.
type Policies struct {
	DataPath        string // "userspace", "queue", "nftables", "iptables", "ipvs" or "auto"; picks take no notice of it
	Scheduler       string // the algorithm, in the spelling of ipvsadm: see [ParseScheduler]
	SlowStart       int64  // how long backends that join others take to get all of their turns
	OutlierEjection Switch // whether backends that fail are ejected; not given: Outlier.Enabled says
	ReadinessProbe  string // the active check of the backends

	// UDPResponses above 0 say that backends answer what clients of UDP send, so that one that does not has failed (the
	// word is proxy_responses of nginx).
	UDPResponses int32

	// Hold is how long a client waits for a backend while there is none, and HoldConnections how many do so at the same
	// time: 0 is 1,024.
	Hold            int64
	HoldConnections int32
	Transparent     Switch // whether backends see the client's own address, where answers pass this node

	// Limits of this node: of the connections of a service port, of each of its backends, and of each client there, and
	// of how many a client opens in a second. 0 is none. Where the backends have no room QueueTimeout is how long a
	// client waits, 5 s unless given, and MaxPendingConnections how many do, 1,024 unless given.
	MaxConnections, MaxEndpointConnections, MaxPendingConnections int32
	MaxClientConnections, MaxClientConnectionRate                 int32
	QueueTimeout                                                  int64

	AccessLog string // "errors" or "all": which connections and flows are logged when they end; else none

	ProxyProtocol string // "v1" or "v2", by which backends hear who the client is: see [Policies.ProxyVersion]

	// OnEndpointRemoved is how long connections stay after their backend has left; below 0: until they end.
	OnEndpointRemoved int64

	ConnectTimeout  int64 // of the first attempt to reach a backend; each next one has twice as long
	ConnectAttempts int32 // how many there are, 1 to 8

	// RetryRefused says whether clients that a backend refuses must get another one, as wherever this process dials.
	RetryRefused Switch

	IdleTimeout           int64 // without a byte in either direction, of TCP and SCTP
	UDPIdleTimeout        int64 // of UDP flows
	MaxConnectionDuration int64 // of a connection whose backend has answered
	MaxConnectionJitter   int32 // percent of which a random part makes that shorter; below 0: none
	HalfCloseTimeout      int64 // after one side has ended its stream, and after each byte then

	// Keep-alive probes of TCP: after how long without a byte, how often, and how many without an answer.
	KeepaliveIdle, KeepaliveInterval int64
	KeepaliveProbes                  int32
	UserTimeout                      int64 // how long bytes of TCP may be without an acknowledgement (TCP_USER_TIMEOUT)
}

// Switch is on, off, or not given.
type Switch int8

// What a Switch can be.
const (
	NotGiven Switch = 0
	On       Switch = 1
	Off      Switch = -1
)

// Or returns p with what it does not request from d.
func (p Policies) Or(d *Policies) *Policies {
	p.DataPath = cmp.Or(p.DataPath, d.DataPath)
	p.Scheduler = cmp.Or(p.Scheduler, d.Scheduler)
	p.SlowStart = cmp.Or(p.SlowStart, d.SlowStart)
	p.OutlierEjection = cmp.Or(p.OutlierEjection, d.OutlierEjection)
	p.ReadinessProbe = cmp.Or(p.ReadinessProbe, d.ReadinessProbe)
	p.UDPResponses = cmp.Or(p.UDPResponses, d.UDPResponses)
	p.RetryRefused = cmp.Or(p.RetryRefused, d.RetryRefused)
	p.Hold = cmp.Or(p.Hold, d.Hold)
	p.HoldConnections = cmp.Or(p.HoldConnections, d.HoldConnections)
	p.Transparent = cmp.Or(p.Transparent, d.Transparent)
	p.MaxConnections = cmp.Or(p.MaxConnections, d.MaxConnections)
	p.MaxEndpointConnections = cmp.Or(p.MaxEndpointConnections, d.MaxEndpointConnections)
	p.MaxPendingConnections = cmp.Or(p.MaxPendingConnections, d.MaxPendingConnections)
	p.MaxClientConnections = cmp.Or(p.MaxClientConnections, d.MaxClientConnections)
	p.MaxClientConnectionRate = cmp.Or(p.MaxClientConnectionRate, d.MaxClientConnectionRate)
	p.QueueTimeout = cmp.Or(p.QueueTimeout, d.QueueTimeout)
	p.AccessLog = cmp.Or(p.AccessLog, d.AccessLog)
	p.ProxyProtocol = cmp.Or(p.ProxyProtocol, d.ProxyProtocol)
	p.OnEndpointRemoved = cmp.Or(p.OnEndpointRemoved, d.OnEndpointRemoved)
	p.ConnectTimeout = cmp.Or(p.ConnectTimeout, d.ConnectTimeout)
	p.ConnectAttempts = cmp.Or(p.ConnectAttempts, d.ConnectAttempts)
	p.IdleTimeout = cmp.Or(p.IdleTimeout, d.IdleTimeout)
	p.UDPIdleTimeout = cmp.Or(p.UDPIdleTimeout, d.UDPIdleTimeout)
	p.MaxConnectionDuration = cmp.Or(p.MaxConnectionDuration, d.MaxConnectionDuration)
	p.MaxConnectionJitter = cmp.Or(p.MaxConnectionJitter, d.MaxConnectionJitter)
	p.HalfCloseTimeout = cmp.Or(p.HalfCloseTimeout, d.HalfCloseTimeout)
	p.KeepaliveIdle = cmp.Or(p.KeepaliveIdle, d.KeepaliveIdle)
	p.KeepaliveInterval = cmp.Or(p.KeepaliveInterval, d.KeepaliveInterval)
	p.KeepaliveProbes = cmp.Or(p.KeepaliveProbes, d.KeepaliveProbes)
	p.UserTimeout = cmp.Or(p.UserTimeout, d.UserTimeout)
	return &p
}

// CountsInFlight reports whether it matters to choices how many connections are in flight.
func (p *Policies) CountsInFlight() bool {
	s, _ := ParseScheduler(p.Scheduler)
	return s.Algorithm == LeastConnections || s.Algorithm == TwoChoices || s.Algorithm == PeakEWMA
}

// InForce returns what holds for s: what it requests, else what is given for all.
func (s *Service) InForce(defaults *Policies) *Policies {
	if s.Policies == nil {
		return defaults
	}
	return s.Policies.Or(defaults)
}

// Logs reports whether connections and flows that have ended are logged, and whether only those that have not ended as
// they should.
func (p *Policies) Logs() (some, onlyErrors bool) {
	return p.AccessLog == "all" || p.AccessLog == "errors", p.AccessLog == "errors"
}

// ProxyVersion returns the version of the PROXY protocol that backends of a protocol hear of clients by; 0: they do
// not. UDP has version 2 only, and SCTP none.
func (p *Policies) ProxyVersion(of Protocol) uint8 {
	switch {
	case p.ProxyProtocol == "v1" && of == TCP:
		return 1
	case p.ProxyProtocol == "v2" && of != SCTP:
		return 2
	}
	return 0
}

// nothing is what most Services request.
var nothing Policies

// Requests returns what s requests; it is never nil, and not to be written to.
func (s *Service) Requests() *Policies {
	if s.Policies == nil {
		return &nothing
	}
	return s.Policies
}

// samePolicies reports whether s and t request the same.
func (s *Service) samePolicies(t *Service) bool {
	return s.Policies == t.Policies || *s.Requests() == *t.Requests()
}

// Watched reports whether connections have to be looked at now and then because of p, and not only after a backend has
// left.
func (p *Policies) Watched() bool {
	return p.IdleTimeout > 0 || p.MaxConnectionDuration > 0 || p.HalfCloseTimeout > 0
}

// Probes reports whether p requests anything of keep-alive probes, or of bytes without an acknowledgement.
func (p *Policies) Probes() bool {
	return p.KeepaliveIdle > 0 || p.KeepaliveInterval > 0 || p.KeepaliveProbes > 0 || p.UserTimeout > 0
}

// SamePolicies reports whether s and t request the same, affinity included.
func (s *Service) SamePolicies(t *Service) bool {
	return s.samePolicies(t) && s.AffinityTimeout == t.AffinityTimeout
}
