package engine

import (
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
)

// Holding is what a Server has besides its associations.
type Holding struct {
	Engine Kind   // Auto: none was chosen yet, and there is nothing
	Why    string // as Server.InUse says

	// Shares is into how many parts the packet engine has divided all packets, by
	// filters of its sockets; 0 for the socket engine.
	Shares int
	Raw    []Raw

	Listening []Listening
}

// Raw is a raw socket of the packet engine.
type Raw struct {
	Share  int // from 0
	IPv6   bool
	FD     int `json:"-"`
	Router int `json:"-"` // socket to look up routes with, which is ready where no descriptor is left
}

// Listening is a frontend that a Server forwards.
type Listening struct {
	Frontend lb.Frontend
	Addr     netip.AddrPort    // as asked for, with the port in use
	Sockets  []ListeningSocket // one for each address; none with the packet engine
}

// ListeningSocket is a listening socket of the socket engine.
type ListeningSocket struct {
	Addr netip.Addr
	FD   int `json:"-"`
}

// FDs passes every descriptor to visit, which may change it, in an order that depends on nothing else.
func (h *Holding) FDs(visit func(fd *int)) {
	for i := range h.Raw {
		visit(&h.Raw[i].FD)
		visit(&h.Raw[i].Router)
	}
	for i := range h.Listening {
		for j := range h.Listening[i].Sockets {
			visit(&h.Listening[i].Sockets[j].FD)
		}
	}
}

// Frozen is the whole state of one association while nothing moves it: one of Packets and Sockets is set, by the
// engine.
type Frozen struct {
	Service lb.ID
	Addr    netip.AddrPort // of the backend; invalid while there is none
	Left    time.Duration  // of what it waits for, or of the present attempt
	Kept    session.Kept   `json:"-"` // packet engine: only how old it is, and what it has passed when

	Dial    *Dialling // nil once the backend has answered
	Packets *Packets
	Sockets *Sockets
}

// Dialling is what a Frozen association has besides until its backend has answered. Left is Frozen's.
type Dialling struct {
	session.Dialling `json:"-"`

	Init    []byte // packet engine: the client's last INIT, without ports
	Hops    int    // packet engine: that it may go on; 0: as many as the system allows
	In, Out uint16 // socket engine: streams of the client's association
}

// Packets is an association of the packet engine.
type Packets struct {
	Client, Backend Side // Backend is zero while there is none

	Tags    Tags   // applied
	Asked   uint32 // initiate tag of the client's last INIT
	Asking  int64  `json:"-"` // when the first INIT came that no INIT ACK has answered; 0: none
	Offered []Tags // of INIT ACKs
	Next    int    // index of the next one
	Echoed  Tags

	Phase      int
	Counted    bool // as established
	ClientShut bool // the client was the first to shut down
}

// Side is one side of an association of the packet engine.
type Side struct {
	Peer, Local netip.AddrPort
	Scope       uint32 // interface of a link-local peer
}

// Sockets is an association of the socket engine.
type Sockets struct {
	Asked               lb.Frontend
	Client, Backend     int // descriptors; Backend is -1 while there is none
	ToBackend, ToClient Way
}

// Way is one direction of an association of the socket engine.
type Way struct {
	EOF     bool   // its source has shut down, and all of it has been read
	Shut    bool   // that has been passed on
	Partial []byte // what has come of a message so far
	Whole   []byte // a message that could not be sent yet, and what stays with it
	Stream  uint16
	Flags   uint16
	PPID    uint32
}

// Tags are the initiate tags of the two ends of an association, which packets to them carry as verification tags.
type Tags struct{ Client, Backend uint32 }
