package sctp

import (
	"errors"

	"github.com/sluice-lb/sluice/sctp/engine"
)

// ErrServerClosed is returned by Listen after Shutdown or Close.
var ErrServerClosed = errors.New("sctp server is closed")

// Engine is a way to forward SCTP.
type Engine = engine.Kind

// The engines. The zero Engine chooses: Socket where the kernel has SCTP, Packet
// where it has not.
const (
	Auto   = engine.Auto
	Socket = engine.Socket
	Packet = engine.Packet
)

// What both engines share.
type (
	Config = engine.Config
	Stats  = engine.Stats
)

// Server forwards the associations of any number of frontends. Its exported fields
// are set before the first call and not changed afterwards. Loops and LB are
// needed; every other zero value has a default. All methods may be called from any
// goroutine except those of Loops.
type Server struct {
	Config

	// Engine forces one. It is read by the first Listen or Choose.
	Engine Engine

	// OnEngine is called once with the engine in use, and why. nil: no call.
	OnEngine func(engine Engine, why string)

	state // of the platform
}
