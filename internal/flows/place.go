package flows

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// Kind says what serves a frontend.
type Kind uint8

// The kinds of a Place.
const (
	Nothing Kind = iota // no rule and no socket of ours
	Refused             // rules refuse or drop its clients
	Proxy               // rules redirect to a port of this node
	Socket              // a socket on its own address, as of a node port
	Kernel              // rules translate to endpoints
	IPVS                // ipvs translates to endpoints, which conntrack does not show as a translation
)

// Place says where packets go that begin a flow to a frontend of UDP or SCTP. Flows that have begun stay where
// they are if a new one would go there; an answered flow of UDP stays with what served the frontend before, too.
type Place struct {
	Kind Kind

	// Port is the proxy port: of new flows where Kind is Proxy; of those that go on in user space else. 0: none.
	Port uint16
	// Bind is the address of this node that Port is at. Invalid or unspecified: any of them.
	Bind netip.Addr

	// Socket says that flows go on at the socket on the frontend's address, which new ones do not get to.
	Socket bool

	// Endpoints are those that flows may be at: of Kernel and IPVS, and where flows go on that began there.
	Endpoints []netip.AddrPort

	Sources []netip.Prefix // of clients that are let in; nil: all
	Inside  bool           // only this node and its pods are
}

// keeps reports whether every flow that may be at a place may stay when it becomes another.
func (p Place) keeps(next Place) bool {
	return p.Kind == next.Kind && p.Port == next.Port && p.Bind == next.Bind && p.Inside == next.Inside &&
		(p.Sources == nil) == (next.Sources == nil) && slices.Equal(p.Sources, next.Sources) &&
		(next.Socket || !p.Socket) && has(next.Endpoints, p.Endpoints)
}

// has reports whether a list has all of another.
func has(list, all []netip.AddrPort) bool {
	if len(all) <= 8 {
		return !slices.ContainsFunc(all, func(a netip.AddrPort) bool { return !slices.Contains(list, a) })
	}
	in := make(map[netip.AddrPort]bool, len(list))
	for _, a := range list {
		in[a] = true
	}
	return !slices.ContainsFunc(all, func(a netip.AddrPort) bool { return !in[a] })
}

// frontend is one whose entries are to be looked at.
type frontend struct {
	now Place
	had []netip.AddrPort // the endpoints of before
}

// Node is what decides about clients and addresses of this node.
type Node struct {
	Local  map[netip.Addr]bool // its addresses
	Inside []netip.Prefix      // of its pods
}

func (n *Node) isLocal(a netip.Addr) bool { return a.IsLoopback() || n.Local[a] }

// frontends are those of a protocol and a family.
type frontends map[netip.AddrPort]*frontend

// of returns that of one end of a flow, nil if it is not to be looked at. An address that is a frontend itself is not
// one of the node's for its port.
func (f frontends) of(end netip.AddrPort, known func(netip.AddrPort) bool, n *Node) *frontend {
	if x := f[end]; x != nil || known(end) || !n.isLocal(end.Addr()) {
		return x
	}
	return f[netip.AddrPortFrom(netfilter.Unspecified(end.Addr().Is6()), end.Port())]
}

// stale reports whether an entry of UDP is to be deleted.
func (x *frontend) stale(e *conntrack.Entry, n *Node) bool {
	answered := e.Status&conntrack.SeenReply != 0
	translated := e.Status&conntrack.DstTranslated != 0
	own, at := e.Replies == e.Dst, e.Replies
	now := &x.now
	switch src := e.Src.Addr(); {
	case now.Kind == Refused,
		now.Sources != nil && !netfilter.Contains(now.Sources, src),
		now.Inside && !n.isLocal(src) && !netfilter.Contains(n.Inside, src):
		return true
	case now.Kind == Nothing:
		return !own && (n.isLocal(at.Addr()) || slices.Contains(x.had, at))
	case own:
		return now.Kind != Socket && !(now.Socket && answered) && !e.Dst.Addr().IsLoopback()
	case slices.Contains(now.Endpoints, at):
		return now.Kind != IPVS && !translated || now.Kind <= Socket && !answered
	}
	proxied := now.Port != 0 && at.Port() == now.Port && n.isLocal(at.Addr()) &&
		(!now.Bind.IsValid() || now.Bind.IsUnspecified() || now.Bind == at.Addr())
	return !proxied || now.Kind != Proxy && !answered
}

// lost reports whether the endpoint of an entry of SCTP has left its Service, or does not serve any more, while there
// are others: without its entry the client reaches one of them when it begins anew. A Service that has gone, perhaps to
// user space, keeps its associations.
func (x *frontend) lost(e *conntrack.Entry, n *Node) bool {
	if x.now.Kind < Kernel || len(x.now.Endpoints) == 0 || e.Replies == e.Dst ||
		slices.Contains(x.now.Endpoints, e.Replies) {
		return false
	}
	return slices.Contains(x.had, e.Replies) || !n.isLocal(e.Replies.Addr())
}

// reversed reports whether an entry of UDP, which comes from a frontend, began with an answer of its socket that came
// too late: the frontend's endpoints are asked by the rules of the kernel now.
func (x *frontend) reversed() bool { return x.now.Kind >= Kernel && !x.now.Socket }

// decide returns what chooses the entries of a protocol.
func (f frontends) decide(protocol lb.Protocol, known func(netip.AddrPort) bool, n *Node) func(*conntrack.Entry) bool {
	if protocol == lb.SCTP {
		return func(e *conntrack.Entry) bool {
			x := f.of(e.Dst, known, n)
			return x != nil && x.lost(e, n)
		}
	}
	return func(e *conntrack.Entry) bool {
		if x := f.of(e.Dst, known, n); x != nil {
			return x.stale(e, n)
		}
		x := f.of(e.Src, known, n)
		return x != nil && x.reversed()
	}
}

// reverses reports whether any entry may have begun with an answer.
func (f frontends) reverses() bool {
	for _, x := range f {
		if x.reversed() {
			return true
		}
	}
	return false
}
