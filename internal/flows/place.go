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

// inKernel reports whether the kernel sends packets to endpoints, without a socket of ours.
func (k Kind) inKernel() bool { return k == Kernel || k == IPVS }

// Place says what serves a frontend. A new flow goes there, and a flow that is there stays. Port,
// AtSocket and Endpoints also name what served the frontend before: answered UDP flows stay there, too.
type Place struct {
	Kind Kind

	// Port is the proxy port: if Kind is Proxy that of new flows, else that of flows that go on in user space. 0: none.
	Port uint16
	// Bind is the address of this node that Port is at. Invalid or unspecified: any of them.
	Bind netip.Addr

	// AtSocket says that flows go on at the socket on the frontend's address, which new ones do not reach.
	AtSocket bool

	// Endpoints are those that flows may be at: if Kind is Kernel or IPVS those of new flows, else those of flows that
	// go on in the kernel.
	Endpoints []netip.AddrPort

	Sources    []netip.Prefix // of clients that are let in; nil: all
	OnlyInside bool           // only clients on this node and its pods are let in
}

// keeps reports whether every flow that may be at p may stay when the place of the frontend becomes next.
func (p Place) keeps(next Place) bool {
	return p.Kind == next.Kind && p.Port == next.Port && p.Bind == next.Bind && p.OnlyInside == next.OnlyInside &&
		(p.Sources == nil) == (next.Sources == nil) && slices.Equal(p.Sources, next.Sources) &&
		(next.AtSocket || !p.AtSocket) && has(next.Endpoints, p.Endpoints)
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

// frontend is one whose entries are checked.
type frontend struct {
	now Place
	had []netip.AddrPort // its earlier endpoints
}

// Node is what decides about clients and addresses of this node.
type Node struct {
	Local  map[netip.Addr]bool // its addresses
	Inside []netip.Prefix      // of its pods
}

func (n *Node) isLocal(a netip.Addr) bool { return a.IsLoopback() || n.Local[a] }

// frontends are those of a protocol and a family.
type frontends map[netip.AddrPort]*frontend

// of returns the frontend at one end of a flow; nil: there is none, or its entries are not checked. An address of the
// node that is a frontend itself, which known says, does not belong to the node port with its number.
func (f frontends) of(end netip.AddrPort, known func(netip.AddrPort) bool, n *Node) *frontend {
	if x := f[end]; x != nil || known(end) || !n.isLocal(end.Addr()) {
		return x
	}
	return f[netip.AddrPortFrom(netfilter.Unspecified(end.Addr().Is6()), end.Port())]
}

// stale reports whether an entry of UDP is to be deleted.
func (x *frontend) stale(e *conntrack.Entry, n *Node) bool {
	now := &x.now
	switch {
	case now.Kind == Refused, !now.admits(e.Src.Addr(), n):
		return true
	case now.Kind == Nothing: // deleted if a proxy or the kernel had it, and not if another program has it
		return e.Replies != e.Dst && (n.isLocal(e.Replies.Addr()) || slices.Contains(x.had, e.Replies))
	case e.Replies == e.Dst: // at the frontend's own address: a socket has it, or nothing served it before
		hasIt := now.Kind == Socket || now.AtSocket && e.Answered()
		return !hasIt && !e.Dst.Addr().IsLoopback()
	case slices.Contains(now.Endpoints, e.Replies):
		return now.mustLeave(e)
	}
	return !now.proxies(e, n) // at an endpoint that is gone, or at a port that is no proxy port
}

// admits reports whether a client is let in.
func (p *Place) admits(client netip.Addr, n *Node) bool {
	return (p.Sources == nil || netfilter.Contains(p.Sources, client)) &&
		(!p.OnlyInside || n.isLocal(client) || netfilter.Contains(n.Inside, client))
}

// mustLeave reports whether an entry of UDP at one of the endpoints is to be deleted.
func (p *Place) mustLeave(e *conntrack.Entry) bool {
	if p.Kind != IPVS && !e.Translated() {
		return true // ipvs had it
	}
	return !p.Kind.inKernel() && !e.Answered() // the kernel was asked before, and a proxy or a socket is now
}

// proxies reports whether an entry of UDP stays at the proxy port: all that new flows reach, else what was answered.
func (p *Place) proxies(e *conntrack.Entry, n *Node) bool {
	at := e.Replies
	return p.Port != 0 && at.Port() == p.Port && n.isLocal(at.Addr()) &&
		(!p.Bind.IsValid() || p.Bind.IsUnspecified() || p.Bind == at.Addr()) &&
		(p.Kind == Proxy || e.Answered())
}

// lost reports whether the endpoint of an entry of SCTP has left its Service, or does not serve any more, while there
// are others: without its entry the client reaches one of them when it begins anew. A Service that has gone, perhaps to
// user space, keeps its associations. A TCP client whose first packet has no answer begins anew with its next one.
func (x *frontend) lost(e *conntrack.Entry, n *Node) bool {
	if e.Protocol == lb.TCP && e.State != conntrack.TCPSynSent {
		return false
	}
	if !x.now.Kind.inKernel() || len(x.now.Endpoints) == 0 || e.Replies == e.Dst ||
		slices.Contains(x.now.Endpoints, e.Replies) {
		return false
	}
	return slices.Contains(x.had, e.Replies) || !n.isLocal(e.Replies.Addr())
}

// reversed reports whether an entry of UDP whose first packet came from the frontend is to be deleted: its socket has
// answered too late, and the kernel sends the frontend's packets to endpoints now.
func (x *frontend) reversed() bool { return x.now.Kind.inKernel() && !x.now.AtSocket }

// decide returns what chooses the entries of a protocol.
func (f frontends) decide(protocol lb.Protocol, known func(netip.AddrPort) bool, n *Node) func(*conntrack.Entry) bool {
	if protocol != lb.UDP {
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

// reverses reports whether an entry that began with an answer may have to be deleted.
func (f frontends) reverses() bool {
	for _, x := range f {
		if x.reversed() {
			return true
		}
	}
	return false
}
