package lb

import (
	"net/netip"
)

// Protocol is a transport protocol of a Service port.
type Protocol uint8

// The protocols of core/v1 ServicePort.protocol. The zero Protocol is invalid.
const (
	TCP Protocol = iota + 1
	UDP
	SCTP
)

// String returns the name Kubernetes uses: "TCP", "UDP" or "SCTP".
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return "invalid"
}

// ID names one port of one Service in one address family. It is the key of
// everything that outlives a Table: round-robin position, affinity, in-flight
// counts. A dual-stack Service has two IDs a port, since a client of one family
// is only ever sent to endpoints of that family.
type ID struct {
	Namespace string
	Name      string // of the Service
	Port      string // name of the port; empty for a single unnamed port
	Protocol  Protocol
	IPv6      bool
}

// String returns "namespace/name:port", or "namespace/name" for an unnamed port,
// the form that kube-proxy logs.
func (id ID) String() string {
	s := id.Namespace + "/" + id.Name
	if id.Port != "" {
		s += ":" + id.Port
	}
	return s
}

// Frontend is an address that clients ask for. It is comparable and is the key
// of a Table.
type Frontend struct {
	Protocol Protocol
	Addr     netip.AddrPort
}

// String returns "TCP 10.96.0.1:80".
func (f Frontend) String() string { return f.Protocol.String() + " " + f.Addr.String() }

// Backend is one endpoint of a Service port, with the conditions of
// discovery/v1 EndpointConditions after their defaults have been filled in.
type Backend struct {
	Addr        netip.AddrPort
	Ready       bool
	Serving     bool
	Terminating bool
}

// Service is one port of one Service in one address family: what clients ask
// for, and who can answer. Its slices belong to the Table once NewTable has
// taken it.
type Service struct {
	ID
	Frontends []netip.AddrPort // the protocol is that of ID
	Backends  []Backend

	// AffinityTimeout is how long a client stays with its backend after its last
	// new connection (sessionAffinity: ClientIP), in nanoseconds; 0 means no
	// affinity. Kubernetes allows 1 s to 86,400 s and defaults to 10,800 s.
	AffinityTimeout int64
}
