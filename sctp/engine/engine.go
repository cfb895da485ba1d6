package engine

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
)

// Kind is a way to forward SCTP.
type Kind uint8

// The ways to forward SCTP.
const (
	Auto   Kind = iota // Socket where the kernel has SCTP, Packet where it has not
	Socket             // kernel sockets, one for each side of an association
	Packet             // raw sockets: packets are rewritten, associations stay the endpoints'
)

var names = [...]string{Auto: "auto", Socket: "socket", Packet: "packet"}

// String returns "auto", "socket" or "packet".
func (e Kind) String() string {
	if int(e) < len(names) {
		return names[e]
	}
	return "invalid"
}

// MarshalText returns String, for flags (encoding.TextMarshaler).
func (e Kind) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText sets e to the Kind whose String is text.
func (e *Kind) UnmarshalText(text []byte) error {
	known := slices.Index(names[:], string(text))
	if known < 0 {
		return fmt.Errorf("engine %q is unknown: give auto, socket or packet", text)
	}
	*e = Kind(known)
	return nil
}

// Engine is one way to forward. Its methods are called by one goroutine at a time.
type Engine interface {
	// Listen starts forwarding for f what arrives at addr. An error wraps unix.EADDRINUSE if the port is in use.
	Listen(f lb.Frontend, addr netip.AddrPort) error
	// Unlisten accepts no more associations for f.
	Unlisten(f lb.Frontend)
	// TableChanged moves what is not established away from backends that are gone.
	TableChanged()
	// StopListening is Unlisten for every frontend, before the parts are drained or stopped.
	StopListening()
	// Parts returns what lives on each loop.
	Parts() []Part
	// Hold adds to h what the engine has.
	Hold(h *Holding)
	// Freeze passes every association to visit, on halted loops.
	Freeze(visit func(*Frozen) error) error
	// Adopt goes on with what another engine has held and frozen.
	Adopt(h *Holding, assocs []Frozen, thawed func()) error
}

// Part is the part of an engine that lives on one loop, where Empty and Stop are called.
type Part struct {
	Do    func(func()) error // runs a function on the loop, and waits for it
	Start func()             // starts Drain: new associations are refused from then on
	Drain *eventloop.Drain
	Count *Counters
	Stop  func() // aborts all associations and closes every socket

	// Look passes associations to visit, from a position on, as tcp.Server.Look does.
	Look func(from int, q *look.Query, visit func(look.Info) (more bool)) (next int)
}
