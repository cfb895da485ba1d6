package handover

import (
	"errors"
	"fmt"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// oldest and newest are the versions of the protocol that we speak (see doc.go).
const oldest, newest = 1, 1

// kind is the type of a message, its first byte. Those from 128 on may be skipped.
type kind byte

const (
	helloMsg        kind = iota + 1 // hello, JSON
	welcomeMsg                      // welcome, JSON, and the token
	failedMsg                       // why it does not go on, text; from either
	partMsg                         // a piece of something long: part, whether it is the last, bytes
	socketsMsg                      // descriptors of what setup lists, in its order
	offersMsg                       // connections, with two descriptors each
	preparedMsg                     // nothing
	readyMsg                        // nothing
	frozenMsg                       // frozen, JSON
	connsMsg                        // connections, with the descriptors of those that were not offered
	bytesMsg                        // what waits in the connections of connsMsg so far, in their order
	flowsMsg                        // flows, with a descriptor each
	commitMsg                       // totals, JSON
	committedMsg                    // nothing
	upgradeMsg                      // asks the running process to upgrade itself; nothing
	upgradedMsg                     // it has; the new process, JSON
	assocSocketsMsg                 // descriptors of associations of the next assocsPart; only to who said hello with SCTP
	optional        kind = 128
)

// part is what a long thing is, which crosses in pieces.
type part byte

const (
	setupPart    part = iota + 1 // setup, JSON
	clientsPart                  // affinity
	memoryPart                   // turns and counts
	countersPart                 // counters, JSON
	assocsPart                   // SCTP associations; may come several times
)

const (
	maxMessage = 48 << 10  // bytes of a message
	maxPart    = 256 << 20 // bytes of a long thing: 65,536 clients take 3 MiB, and 10,000 Services 30 MiB
	maxFDs     = 253       // SCM_MAX_FD of the kernel
	maxConns   = 1 << 22   // connections, and flows
)

// hello is the first word of who takes over, or who has another errand.
type hello struct {
	Oldest, Newest int    // versions of the protocol
	Program        string // version of the program
	PID            int
	NetNS          string // the network namespace, as device and inode number
	SCTP           bool   // SCTP can be taken over, too
}

// welcome is the answer to hello.
type welcome struct {
	Version int    // of the protocol, from here on
	Program string // version of the program
	PID     int

	Descriptors int // that will be passed, about
}

// setup is what is known before the first connection crosses.
type setup struct {
	Seed  uint64 // of the balancer
	Agent agent.State
	TCP   []tcpSockets
	UDP   []udpSockets
	SCTP  *sctp.Holding `json:",omitempty"` // its descriptors are in the order of FDs
	HTTP  []Address
}

type tcpSockets struct {
	tcp.Listening
	Sockets int
}

type udpSockets struct {
	udp.Listening
	Sockets int
}

// frozen is said when nothing moves any more.
type frozen struct {
	Since int64 // CLOCK_MONOTONIC, ns
}

// counters are those of the data path.
type counters struct {
	TCP tcp.Stats
	UDP udp.Stats

	SCTP sctp.Stats
}

// totals are for checking that nothing was left out.
type totals struct{ Conns, Flows, Assocs int }

// Failure is what the other side says when it does not go on.
type Failure struct{ Reason string }

// Error returns the reason.
func (f *Failure) Error() string { return f.Reason }

// chooseVersion returns the newest version that both speak.
func chooseVersion(h hello) (int, error) {
	if v := min(newest, h.Newest); v >= max(oldest, h.Oldest) {
		return v, nil
	}
	return 0, fmt.Errorf("the two programs cannot talk to each other: the running one (%s) speaks versions %d to %d of the protocol, "+
		"the new one %d to %d: upgrade by a version in between, or stop the running one first", "this one", oldest, newest, h.Oldest, h.Newest)
}

// checkSetup refuses what could not be meant.
func (s *setup) check() error {
	for _, l := range s.TCP {
		if !l.Addr.IsValid() || l.Sockets < 1 {
			return errors.New("a TCP listener without an address or sockets")
		}
	}
	for _, l := range s.UDP {
		if l.Frontend.Protocol != lb.UDP || !l.Frontend.Addr.IsValid() || l.Sockets < 1 {
			return errors.New("a UDP listener without a frontend or sockets")
		}
	}
	if s.SCTP != nil {
		for _, l := range s.SCTP.Listening {
			if l.Frontend.Protocol != lb.SCTP || !l.Frontend.Addr.IsValid() || !l.Addr.IsValid() {
				return errors.New("an SCTP listener without a frontend or an address")
			}
		}
	}
	if n := s.sockets(); n > maxConns {
		return fmt.Errorf("%d listening sockets", n)
	}
	return nil
}

// sockets returns how many descriptors follow the setup.
func (s *setup) sockets() int {
	n := len(s.HTTP)
	for _, l := range s.TCP {
		n += l.Sockets
	}
	for _, l := range s.UDP {
		n += l.Sockets
	}
	if s.SCTP != nil {
		s.SCTP.FDs(func(*int) { n++ })
	}
	return n
}
