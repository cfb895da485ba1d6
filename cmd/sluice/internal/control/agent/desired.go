package agent

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// environment is what decides about Services besides themselves.
type environment struct {
	mode      Path
	given     lb.Policies  // for all Services
	can       [2]abilities // by family
	direct    [2]bool      // the host holds the service addresses
	nodePorts []netip.Addr // on which node ports are served; an unspecified one stands for all
	refusing  bool         // a socket refuses SCTP where no endpoint is (Agent.RefuseSCTP)
	offload   [2]bool      // by family: what user space forwards goes to the kernel (Agent.Offload)
	hold      bool         // clients of Services that request nothing else are held while there is no endpoint
}

// nothing is the piece of a service port that there is not.
var nothing = new(piece)

// piece is what one service port comes to.
type piece struct {
	service *lb.Service
	choice  Choice
	sockets []socket
	entries []redirect.Entry // as if every socket could be opened, and without proxy ports
	kernel  *lb.Service      // for the engine of the path, with the addresses of node ports; nil: none

	// Once the piece is applied:

	steered  []redirect.Entry // what has been passed to steering
	carries  bool             // of UDP: flows go on that the path before began
	unopened []lb.Frontend    // those without the proxy port that they need
}

// socket is one that a service port needs.
type socket struct {
	frontend lb.Frontend
	proxy    bool // on a proxy port; false: on the address of the frontend itself
}

// piece says what a service of the table comes to on a path. It is pure.
func (e *environment) piece(table *lb.Table, s *lb.Service, on Choice) *piece {
	p := &piece{service: s, choice: on}
	if slices.Contains(kernelPaths, p.choice.Path) {
		p.kernel = e.concrete(table, s)
	}
	if p.choice.Offloaded {
		p.kernel = masqueraded(p.kernel)
	}
	for i := range s.Addresses {
		addr := &s.Addresses[i]
		inside, outside := s.Verdicts(*addr)
		if p.choice.Path == Userspace && e.clientsWait(s) {
			inside, outside = waiting(inside), waiting(outside)
		}
		for _, f := range e.frontends(table, s, addr) {
			e.serve(p, f, addr, inside, outside)
		}
	}
	return p
}

// clientsWait reports whether clients of a service wait in user space while there is no endpoint.
func (e *environment) clientsWait(s *lb.Service) bool {
	hold := s.Requests().Hold
	return hold > 0 || hold == 0 && e.hold
}

// waiting returns a verdict for an address at which clients wait instead of being refused.
func waiting(v lb.Verdict) lb.Verdict {
	if v == lb.Refuse {
		return lb.Serve
	}
	return v
}

// serve adds what one frontend needs.
func (e *environment) serve(p *piece, f lb.Frontend, addr *lb.Address, inside, outside lb.Verdict) {
	direct := e.direct[family(p.service.IPv6)]
	userspace := p.choice.Path == Userspace
	nodePort := addr.Kind == lb.NodePort
	idle := inside != lb.Serve && outside != lb.Serve
	sctp := f.Protocol == lb.SCTP
	switch {
	case direct && idle: // the host refuses where nothing listens
		if sctp && e.refusing {
			p.sockets = append(p.sockets, socket{f, false})
		}
		return
	case nodePort && sctp && !userspace: // a listener of ours may answer every packet that comes to its port
		return
	case nodePort || direct && userspace:
		p.sockets = append(p.sockets, socket{f, false})
	}
	if direct || !userspace && nodePort {
		return // the kernel does not leave a node port to the socket but by loopback
	}
	entry := redirect.Entry{Frontend: f, ClusterIP: addr.Kind == lb.ClusterIP}
	entry.DropOutside = userspace && !idle && outside == lb.Drop
	switch {
	case !userspace: // what else is asked of the address is refused
	case idle && inside == lb.Refuse:
		entry.Action = redirect.Refuse
	case idle:
		entry.Action = redirect.Drop
	case nodePort:
		entry.Action = redirect.Accept
	default:
		entry.Action = redirect.Redirect
		if len(addr.Sources) > 0 {
			entry.Sources = addr.Sources
		}
		if f.Protocol != lb.TCP {
			p.sockets = append(p.sockets, socket{f, true})
		}
	}
	p.entries = append(p.entries, entry)
}

// frontends returns what clients ask for at an address: for a node port one for each
// address on which node ports are served. An exact address takes precedence over it.
func (e *environment) frontends(table *lb.Table, s *lb.Service, addr *lb.Address) []lb.Frontend {
	if addr.Kind != lb.NodePort {
		return []lb.Frontend{{Protocol: s.Protocol, Addr: addr.Addr}}
	}
	var out []lb.Frontend
	for _, ip := range e.nodePorts {
		f := lb.Frontend{Protocol: s.Protocol, Addr: netip.AddrPortFrom(ip, addr.Addr.Port())}
		if ip.Is6() != s.IPv6 {
			continue
		}
		if _, owner, ok := table.Lookup(f); ok && owner.Kind == lb.NodePort {
			out = append(out, f)
		}
	}
	return out
}

// concrete returns a service with its node port as the addresses on which it is served.
func (e *environment) concrete(table *lb.Table, s *lb.Service) *lb.Service {
	nodePort := func(a lb.Address) bool { return a.Kind == lb.NodePort }
	if !slices.ContainsFunc(s.Addresses, nodePort) {
		return s
	}
	out := *s
	out.Addresses = make([]lb.Address, 0, len(s.Addresses)+len(e.nodePorts))
	for _, addr := range s.Addresses {
		for _, f := range e.frontends(table, s, &addr) {
			served := addr
			served.Addr = f.Addr
			out.Addresses = append(out.Addresses, served)
		}
	}
	return &out
}

// choose decides the path of a Service, as choose does, unless this process ends.
func (e *environment) choose(s *lb.Service) Choice {
	can := &e.can[family(s.IPv6)]
	c := choose(s, e.mode, can, &e.given)
	if c.Path != Userspace || policies.NeedsUserspace(s) != nil || !e.offload[family(s.IPv6)] {
		return c
	}
	for _, path := range []Path{NFTables, IPTables} {
		if can[path] == nil {
			c.Path, c.Reason, c.Why, c.Offloaded = path, ByEnd, "this process ends", true
			return c
		}
	}
	return c
}

// available returns which paths there are for a Service.
func (e *environment) available(s *lb.Service) abilities { return e.can[family(s.IPv6)].of(s) }

// masqueraded returns a service whose endpoints see this node as the client, as in user space: they may have no way
// back to the client but by this node.
func masqueraded(s *lb.Service) *lb.Service {
	out := *s
	out.Masquerade = true
	return &out
}
