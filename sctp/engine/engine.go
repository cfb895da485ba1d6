package engine

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// Kind is a way to forward SCTP.
type Kind uint8

// The engines. The zero Kind chooses: Socket where the kernel has SCTP, Packet
// where it has not.
const (
	Auto   Kind = iota
	Socket      // kernel sockets, one for each side of an association
	Packet      // raw sockets: packets are rewritten, associations stay the endpoints'
)

// String returns "auto", "socket" or "packet".
func (e Kind) String() string {
	switch e {
	case Auto:
		return "auto"
	case Socket:
		return "socket"
	case Packet:
		return "packet"
	}
	return "invalid"
}

// MarshalText returns String, for flags (encoding.TextMarshaler).
func (e Kind) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText sets e to the Kind whose String is text.
func (e *Kind) UnmarshalText(text []byte) error {
	for known := Auto; known <= Packet; known++ {
		if known.String() == string(text) {
			*e = known
			return nil
		}
	}
	return fmt.Errorf("engine %q is unknown: give auto, socket or packet", text)
}

// Ports that are given to frontends that ask for any, below those towards backends
// and those of node ports.
const (
	FirstChosen = 16384
	LastChosen  = 29999
)

// Engine is one way to forward. Its methods are called by one goroutine at a time, except
// Drained, which waits.
type Engine interface {
	// Listen starts forwarding for f what arrives at addr.
	Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error)
	// Unlisten accepts no more associations for f.
	Unlisten(f lb.Frontend)
	// TableChanged moves what is not established away from backends that are gone.
	TableChanged()
	// Drain refuses new associations.
	Drain() error
	// Drained waits until the last has ended, or ctx has.
	Drained(ctx context.Context) error
	// Close ends all of them.
	Close()
	// Stats sums the counters.
	Stats() Stats
	// Restore adds to them what another engine has counted.
	Restore(from Stats)
	// Hold adds to h what the engine has.
	Hold(h *Holding)
	// Freeze passes every association to visit, on halted loops.
	Freeze(visit func(*Frozen) error) error
	// Adopt goes on with what another engine has held and frozen.
	Adopt(h *Holding, assocs []Frozen, thawed func()) error
}
