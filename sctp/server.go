package sctp

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// ErrServerClosed is returned by Listen after Shutdown or Close.
var ErrServerClosed = errors.New("sctp server is closed")

// Engine is a way to forward SCTP.
type Engine uint8

// The engines. The zero Engine chooses: Socket where the kernel has SCTP, Packet
// where it has not.
const (
	Auto   Engine = iota
	Socket        // kernel sockets, one for each side of an association
	Packet        // raw sockets: packets are rewritten, associations stay the endpoints'
)

// String returns "auto", "socket" or "packet".
func (e Engine) String() string {
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
func (e Engine) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText sets e to the Engine whose String is text.
func (e *Engine) UnmarshalText(text []byte) error {
	for known := Auto; known <= Packet; known++ {
		if known.String() == string(text) {
			*e = known
			return nil
		}
	}
	return fmt.Errorf("engine %q is unknown: give auto, socket or packet", text)
}

// Server forwards the associations of any number of frontends. Its exported fields
// are set before the first call and not changed afterwards. Loops and LB are
// needed; every other zero value has a default. All methods may be called from any
// goroutine except those of Loops.
type Server struct {
	// Loops run the Server's associations. They must outlive it: Close the Server
	// first.
	Loops *eventloop.Group

	// LB chooses backends.
	LB *lb.Balancer

	// Engine forces one. It is read by the first Listen or Choose.
	Engine Engine

	// OnEngine is told once which engine is in use, and why. nil: nobody is.
	OnEngine func(engine Engine, why string)

	// Descriptors bounds the sockets of all associations, two for each, in the
	// socket engine. nil: no bound. The packet engine has a few for all.
	Descriptors *eventloop.Budget

	// DialTimeouts is how long each attempt to reach a backend may take; its length
	// is the number of attempts. Empty: 250 ms, 500 ms, 1 s, 2 s.
	DialTimeouts []time.Duration

	// MaxAssociations bounds the associations of the packet engine, those included
	// that have just ended or are not established. Every loop has an equal share.
	// When a share is used up the oldest that has ended makes room, or else the
	// oldest that is not established. 0: 65,536.
	MaxAssociations int

	// MaxDials bounds the attempts in flight of each loop in the socket engine; more
	// clients wait in the backlog. 0: 4,096.
	MaxDials int

	// IdleTimeout is how long an association may pass nothing before both sides are
	// told that it is over. For the packet engine heartbeats pass (RFC 9260 section
	// 8.3; every 30 s by default), so that it forgets endpoints that have vanished;
	// 0: 15 min. For the socket engine the kernel sends and answers them, and ends an
	// association whose peer is silent; 0: no limit. Negative: no limit.
	IdleTimeout time.Duration

	// MaxStreams bounds the streams of an association in the socket engine, each way;
	// within it the client's wish is the backend's. The kernel reserves memory for each
	// at once. At most 65,535; 0: 1,024.
	MaxStreams int

	// MaxMessage bounds user messages in the socket engine, which takes them whole, in
	// bytes; one that is longer ends its association. 0: 1 MiB.
	MaxMessage int

	// SocketBuffer is how many bytes the kernel may queue at each raw socket, each way,
	// of the packet engine, its own overhead included (socket(7)). Without CAP_NET_ADMIN
	// it is capped at net.core.rmem_max and wmem_max. 0: 4 MiB.
	SocketBuffer int

	state // of the platform
}

// Stats is a snapshot of a Server's counters since it started, and of two gauges.
// Counters of different loops are read one after the other, so sums of them may be
// a few events apart.
type Stats struct {
	Active   int64 // associations now, from the client's first packet to the last (gauge)
	Dialling int64 // those whose backend has not answered yet (gauge)

	Accepted     uint64 // associations that clients asked for
	NoService    uint64 // aborted: no Service has the frontend
	NoBackend    uint64 // aborted: the Service has no backend
	NoLocal      uint64 // aborted: the Service has none on this node, and policy Local
	NotAllowed   uint64 // aborted: the client is not among the sources of the address
	Dials        uint64 // attempts to reach a backend
	DialRefused  uint64 // attempts that failed with an answer
	DialTimedOut uint64 // attempts that nobody answered in time
	DialGaveUp   uint64 // associations aborted because every attempt failed
	Established  uint64 // associations that both sides agreed on

	Completed     uint64 // associations that ended by SHUTDOWN
	ClientAborts  uint64 // those that the client, or the way to it, ended otherwise
	BackendAborts uint64 // those that the backend, or the way to it, ended otherwise
	Expired       uint64 // those that were idle, or not established, for too long
	Evicted       uint64 // those that made room for others

	MessagesIn, BytesIn   uint64 // user messages to backends; with the packet engine each time they are sent
	MessagesOut, BytesOut uint64 // the same to clients
	PacketsIn, PacketsOut uint64 // packet engine: passed to backends, and to clients

	BadChecksum uint64 // packets dropped: CRC32c
	Malformed   uint64 // packets dropped: lengths, ports or tags that no packet has
	Bundled     uint64 // packets dropped: INIT, INIT ACK or SHUTDOWN COMPLETE with other chunks
	BadTag      uint64 // packets dropped: the verification tag of no association of these ports
	Unexpected  uint64 // packets dropped: not from this side, or not at this time
	Stray       uint64 // packets of no association; at a frontend they are answered with ABORT
	ASCONF      uint64 // packets refused: they would change an endpoint's addresses
	Draining    uint64 // INITs not answered during Shutdown
	Full        uint64 // INITs not answered: every association of a full table is in use
	Busy        uint64 // packets dropped: the queue to send through was full
	TooLong     uint64 // messages that ended their association: longer than MaxMessage

	PausedDescriptors uint64 // socket engine: accepting paused, no descriptor left
	PausedDials       uint64 // socket engine: accepting paused, MaxDials reached
	AcceptErrors      uint64 // socket engine: accept(2) failed otherwise
	Shortages         uint64 // a dial waited for, or failed by, want of descriptors, ports or memory
	SendErrors        uint64 // sends that the kernel refused
	ReceiveErrors     uint64 // receives that failed
}
