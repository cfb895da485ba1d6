package redirect

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// Action says what becomes of a packet that begins a flow to a frontend.
type Action uint8

// The actions of an [Entry].
const (
	Pass     Action = iota // goes on as without us; only DropOutside, ClusterIP and Sources apply
	Redirect               // is redirected to the proxy port
	Accept                 // passes INPUT: the proxy listens on the frontend itself
	Refuse                 // TCP: a reset; others: ICMP port unreachable
	Drop                   // no client gets an answer
)

// String returns the action as errors name it, as in "refused".
func (a Action) String() string {
	return [...]string{"passed", "redirected", "accepted", "refused", "dropped"}[a]
}

// Entry says what becomes of packets to one frontend.
//
// A frontend with an unspecified address (0.0.0.0 or ::) is a node port: that port on
// every address of the node, loopback included. The proxy listens there itself, so it
// can be accepted, refused or dropped, and is not redirected. A frontend with the exact
// address takes precedence over it.
type Entry struct {
	Frontend lb.Frontend
	Action   Action

	// Port is the proxy port, of Redirect only. TCP frontends share Host.TCPPort; UDP
	// and SCTP frontends of one service may share a port.
	Port uint16

	// DropOutside drops clients that are not on this node: neither the node itself
	// nor in Host.Inside.
	DropOutside bool

	// ClusterIP says that the address is a cluster IP: a port of it that no entry has is
	// refused, of TCP, UDP and SCTP, unless the address is one of the node. Not for node ports.
	ClusterIP bool

	// Sources are the clients that are not dropped: other hosts, pods and the node
	// itself alike, which asks from the frontend's address if it has that on an
	// interface. nil means every client; prefixes of the other address family match
	// none, and one of length 0 all. Not for node ports.
	Sources []netip.Prefix
}

// Equal reports whether two entries say the same.
func (e Entry) Equal(o Entry) bool {
	return e.Frontend == o.Frontend && e.Action == o.Action && e.Port == o.Port && e.DropOutside == o.DropOutside &&
		e.ClusterIP == o.ClusterIP && (e.Sources == nil) == (o.Sources == nil) && slices.Equal(e.Sources, o.Sources)
}

// Host is what all entries share.
type Host struct {
	// TCPPort is the proxy port of TCP frontends. It may be 0 if there are none. A
	// port that is given is protected from direct connections even then.
	TCPPort uint16

	// Local are addresses of the node, none of them loopback ones. SCTP clients on the
	// node are redirected to the first one of their family, since the kernel's SCTP
	// does not answer at a loopback address for others (sctp_bind_addr_copy). Without
	// one they are redirected to loopback.
	Local []netip.Addr

	// Inside are the prefixes of this node's pods.
	Inside []netip.Prefix

	// ServiceCIDRs are where cluster IPs are from. Packets to other addresses in there are
	// dropped, unless an entry has them, or the node.
	ServiceCIDRs []netip.Prefix
}

// Update is a change of what is redirected. It may have entries of both address
// families; an [IPTables] takes those of its own. Its lists are not kept.
type Update struct {
	Host Host

	// Whole says that Add is all there is to be.
	Whole bool

	// Remove are entries that go, of which only the frontend is read, and Add those
	// that come. An entry that changes is in both.
	Remove, Add []Entry
}
