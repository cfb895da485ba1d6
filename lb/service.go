package lb

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
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
func (p Protocol) String() string { return name(p, "invalid", "TCP", "UDP", "SCTP") }

// name returns the name of a value of an enumeration.
func name[V ~uint8](v V, names ...string) string {
	if int(v) < len(names) {
		return names[v]
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

// Name is that of a Service, with all of its ports.
type Name struct{ Namespace, Name string }

// Compare orders Services by their namespaces, then by their names.
func (n Name) Compare(o Name) int {
	if n.Namespace != o.Namespace {
		return strings.Compare(n.Namespace, o.Namespace)
	}
	return strings.Compare(n.Name, o.Name)
}

// Compare orders IDs by the names of their Services, then of their ports.
func (id ID) Compare(o ID) int {
	if c := id.Service().Compare(o.Service()); c != 0 {
		return c
	}
	if c := strings.Compare(id.Port, o.Port); c != 0 {
		return c
	}
	if c := cmp.Compare(id.Protocol, o.Protocol); c != 0 || id.IPv6 == o.IPv6 {
		return c
	}
	if o.IPv6 {
		return -1
	}
	return 1
}

// Service returns the name of the Service that the port is of.
func (id ID) Service() Name { return Name{id.Namespace, id.Name} }

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

// Kind says how an address came to a Service, which decides whom a traffic policy
// and source ranges concern.
type Kind uint8

// The kinds of addresses. The zero Kind is a cluster IP.
const (
	ClusterIP Kind = iota
	NodePort
	ExternalIP
	LoadBalancerIP
)

// String returns "cluster IP", "node port", "external IP" or "load-balancer IP".
func (k Kind) String() string {
	return name(k, "cluster IP", "node port", "external IP", "load-balancer IP")
}

// Address is one address at which a Service port is served, and the rules for
// those who ask there.
type Address struct {
	// Addr is what clients ask for. The unspecified address, 0.0.0.0 or ::, stands
	// for every address of the node that has no exact owner: a node port.
	Addr netip.AddrPort

	Kind Kind

	// Local restricts the address to endpoints of this node: internalTrafficPolicy
	// Local for a cluster IP, externalTrafficPolicy Local for all other kinds. For
	// the latter, clients on this node, its pods and itself, get any endpoint
	// nevertheless.
	Local bool

	// Sources are the only clients that may ask (loadBalancerSourceRanges); empty
	// means every client. An invalid prefix contains none. Mind that kube-proxy
	// applies the ranges to load-balancer IPs only.
	Sources []netip.Prefix
}

// Hint says what a topology hint of an EndpointSlice means to this node.
type Hint uint8

// The zero Hint is the absence of one.
const (
	NoHint        Hint = iota
	HintHere           // it names this node, or this node's zone
	HintElsewhere      // it names only others
)

// Backend is one endpoint of a Service port, with the conditions of
// discovery/v1 EndpointConditions after their defaults have been filled in.
type Backend struct {
	Addr        netip.AddrPort
	Ready       bool
	Serving     bool
	Terminating bool
	Local       bool // it runs on this node
	NodeHint    Hint // hints.forNodes
	ZoneHint    Hint // hints.forZones

	// Loop says that the backend leads back to us: it is an address of a service of the
	// table, or one of this node with a node port. Nothing is sent there. A table says so
	// of its services; what it is given does not count.
	Loop bool

	// Maintenance says that there are to be no new connections, as a weight of 0 does; those that are there may stay.
	Maintenance bool

	// Drained says that an operator wants no new connections there; those that are there may stay ([Drains.Mark]).
	Drained bool

	// Ended says that it is drained and that its deadline is over: connections that are there end, too.
	Ended bool

	// Weight is the part of new connections that the backend gets, beside the weights of others; 0 is as 1.
	Weight uint16
}

// Node is what there is to know of the node that we run on.
type Node struct {
	PodCIDRs  []netip.Prefix // where the addresses of its own pods are from
	Addresses []netip.Addr   // its own, loopback not needed
	NodePorts []netip.Addr   // where node ports are served; 0.0.0.0 and :: stand for all of these and loopback

	// Elsewhere are addresses of other nodes, which no service gets: where this host holds the addresses of services,
	// it would no longer reach those nodes.
	Elsewhere []netip.Addr

	// Own are where this program itself answers over TCP, as its health checks: no service gets them at an address of
	// the node, or as a node port. 0.0.0.0 and :: stand for all of Addresses.
	Own []netip.AddrPort

	// ServiceCIDRs are where cluster IPs are from, of both families, sorted, each once. A table does not need them.
	ServiceCIDRs []netip.Prefix
}

// Service is one port of one Service in one address family: what clients ask
// for, and who can answer. Its slices belong to the Table once NewTable has
// taken it.
type Service struct {
	ID
	Addresses []Address // the protocol is that of ID
	Backends  []Backend

	// AffinityTimeout is how long a client stays with its backend after its last
	// new connection (sessionAffinity: ClientIP), in nanoseconds; 0 means no
	// affinity. Kubernetes allows 1 s to 86,400 s and defaults to 10,800 s.
	AffinityTimeout int64

	// Created is its age: of two services that list an address of one kind, the lower number owns it.
	Created int64

	// CheckPort is the TCP port at which this node answers health checks of the Service; 0: it answers none. No
	// external or load-balancer IP of another Service takes it at an address of the node.
	CheckPort uint16

	// Policies are what its annotations request; nil: nothing. Services share them.
	Policies *Policies

	// Masquerade makes this node the source of connections that the kernel forwards, at every
	// address with policy Cluster: so that endpoints see what they see in user space.
	Masquerade bool
}

// Equal reports whether s and t say the same. Slices that are the same memory are not
// looked into.
func (s *Service) Equal(t *Service) bool {
	return s == t || s != nil && t != nil &&
		s.ID == t.ID && s.AffinityTimeout == t.AffinityTimeout && s.Created == t.Created &&
		s.CheckPort == t.CheckPort && s.samePolicies(t) && s.Masquerade == t.Masquerade &&
		sameBackends(s.Backends, t.Backends) &&
		sameAddresses(s.Addresses, t.Addresses)
}

// SameAddresses reports whether s and t are served at the same addresses by the same rules.
func (s *Service) SameAddresses(t *Service) bool { return sameAddresses(s.Addresses, t.Addresses) }

// sameAddresses compares without looking if the slices are one.
func sameAddresses(a, b []Address) bool {
	return sameSlice(a, b) || slices.EqualFunc(a, b, equalAddress)
}

func equalAddress(a, b Address) bool {
	return a.Addr == b.Addr && a.Kind == b.Kind && a.Local == b.Local && slices.Equal(a.Sources, b.Sources)
}

// Verdict is what becomes of those who ask at an address.
type Verdict uint8

// The verdicts.
const (
	Serve  Verdict = iota // there is a backend
	Refuse                // refused at once: no backend is eligible
	Drop                  // not answered, since another node may: no backend of this node is eligible
)

// weight returns the part of new connections that b is to have, beside those of others.
func (b *Backend) weight() uint32 { return max(1, uint32(b.Weight)) }

// Weighted reports whether the backends of s that are neither in maintenance nor drained have different weights.
func (s *Service) Weighted() bool {
	first := uint32(0)
	for i := range s.Backends {
		k := &s.Backends[i]
		if k.Maintenance || k.Drained {
			continue
		}
		if first != 0 && k.weight() != first {
			return true
		}
		first = k.weight()
	}
	return false
}

// SameBalance reports whether s and t are balanced alike, wherever they are served.
func (s *Service) SameBalance(t *Service) bool {
	return s.AffinityTimeout == t.AffinityTimeout && s.samePolicies(t) && sameBackends(s.Backends, t.Backends)
}

// sameBackends compares without looking if the slices are one.
func sameBackends(a, b []Backend) bool { return sameSlice(a, b) || slices.Equal(a, b) }
