package agent

import (
	"context"
	"errors"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/tcp"
)

// Engine forwards Services of one address family in the kernel (the Engines of kernelmodes/nftables, which is that of
// path queue, too, kernelmodes/iptables and kernelmodes/ipvs). The daemon calls its Probe and Cleanup.
type Engine interface {
	// Sync changes what is forwarded. Node ports have the addresses on which they are served. The first delta is
	// whole, and so is the one after an error. After Verify has returned false, Sync writes everything that the
	// engine has, for an empty delta too.
	Sync(context.Context, lb.Delta, lb.Node) error
	// Verify reports whether what the last Sync made is still there.
	Verify(context.Context) (bool, error)
	// Leftover reports whether an earlier process has left Services here. It is for before the first Sync.
	Leftover(context.Context) (bool, error)
	// Clients returns which backends the clients of a Service with affinity are at, the
	// longest ago first, given the time on the clock of lb.Client.LastUsed.
	Clients(context.Context, *lb.Service, int64) ([]lb.Client, error)
	// Remember sends clients where they were. An error that wraps errors.ErrUnsupported
	// says that it never can.
	Remember(context.Context, *lb.Service, []lb.Client) error
}

// Sockets opens and closes the sockets of one protocol: on proxy ports, on node ports, and
// on service addresses that the host holds (udp.Server, sctp.Server, and [TCP]).
type Sockets interface {
	// Listen opens the socket of a frontend; port 0 lets the kernel choose.
	Listen(lb.Frontend, netip.AddrPort) (netip.AddrPort, error)
	// Unlisten closes it. Flows that cannot go on without it end.
	Unlisten(lb.Frontend)
	// TableChanged makes flows leave endpoints that are no longer in the table, and held clients go on.
	TableChanged()
}

// TCP returns the sockets of s on node ports and service addresses.
func TCP(s *tcp.Server) Sockets { return tcpSockets{s} }

type tcpSockets struct{ server *tcp.Server }

func (s tcpSockets) Listen(_ lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	return s.server.Listen(addr)
}

func (s tcpSockets) Unlisten(f lb.Frontend) { s.server.Unlisten(f.Addr) }

func (s tcpSockets) TableChanged() { s.server.TableChanged() }

// Steering makes packets for frontends of one address family arrive at proxy ports
// (redirect.IPTables).
type Steering struct {
	// Sync changes what is steered. After an error it is as with an Engine.
	Sync func(context.Context, redirect.Update) error
	// Verify reports whether what the last Sync made is still there.
	Verify func(context.Context) (bool, error)
}

// Moving moves the sockets of UDP frontends from one proxy port to another, with their flows (udp.Server).
type Moving struct {
	// Move opens the socket of a frontend at another address; the one before goes on.
	Move func(lb.Frontend, netip.AddrPort) (netip.AddrPort, error)
	// Flows returns how many flows a frontend has.
	Flows func(lb.Frontend) int
	// Leave moves flows, since what comes anew arrives at the new socket, and Settle closes the one before, since
	// nothing does there any more. Both ignore a frontend that was not moved.
	Leave, Settle func(lb.Frontend)
}

// Holding makes this host hold service addresses of one family, so that sockets can be on
// them (addresses.Set).
type Holding struct {
	// Sync makes the host hold exactly these, of its family. After an error some may be
	// missing.
	Sync func(context.Context, []netip.Addr) error
	// Verify reports whether the host still has what the last Sync asked for.
	Verify func(context.Context) (bool, error)
	// Held returns, sorted, the addresses that the host has because of Sync.
	Held func() []netip.Addr
}

// Family is how one address family is served: packets are steered to proxy ports, or
// the host holds the service addresses and sockets listen there. With neither the
// family is not served.
type Family struct {
	Steer     *Steering
	Bind      netip.Addr // where UDP and SCTP proxy ports listen
	Addresses *Holding

	// Engines forward in the kernel, Queue, NFTables, IPTables and IPVS. nil: this host cannot, and No says why.
	Engines [pathCount]Engine
	No      [pathCount]error
}

func (f *Family) served() bool { return f.Steer != nil || f.Addresses != nil }

// verify returns which parts of a family are not as they were made: steering, addresses, or the data path of an engine.
// All are asked, since only one that has looked knows that there is something to repair. repair is called with the path
// of an engine before others are asked. An engine that writes is asked the next time.
func (f *Family) verify(ctx context.Context, engines *[pathCount]forwarder, repair func(Path)) (changed []string,
	err error) {
	var errs []error
	ask := func(part string, verify func(context.Context) (bool, error)) {
		ok, err := verify(ctx)
		if !ok && err == nil { // else nothing is known to be missing
			changed = append(changed, part)
		}
		errs = append(errs, err)
	}
	if f.Steer != nil {
		ask("steering", f.Steer.Verify)
	}
	if f.Addresses != nil {
		ask("addresses", f.Addresses.Verify)
	}
	for path, e := range f.Engines {
		if e == nil || engines[path].job != nil {
			continue
		}
		before := len(changed)
		if ask(Path(path).String(), e.Verify); len(changed) > before {
			repair(Path(path))
		}
	}
	return changed, errors.Join(errs...)
}
