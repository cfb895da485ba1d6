package handover

import (
	"fmt"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// version is that of the protocol. Every change of what crosses raises it, but for the first
// byte of a message, hello's Version and failedMsg, by which other versions are refused.
const version = 2

// kind is the type of a message, its first byte.
type kind byte

const (
	helloMsg        kind = iota + 1 // hello, JSON
	welcomeMsg                      // welcome, JSON, and the token
	failedMsg                       // why it does not go on, text; from either side
	partMsg                         // a piece of something long: part, whether it is the last, bytes
	socketsMsg                      // file descriptors of what setup lists, in its order
	offersMsg                       // connections, with two file descriptors each
	preparedMsg                     // nothing
	readyMsg                        // nothing
	frozenMsg                       // frozen, JSON
	connsMsg                        // connections, with the file descriptors of those that were not offered
	bytesMsg                        // what waits in the connections of connsMsg so far, in their order
	flowsMsg                        // flows, with a file descriptor each
	commitMsg                       // nothing
	committedMsg                    // nothing
	upgradeMsg                      // asks the running process to upgrade itself; nothing
	upgradedMsg                     // it has; the new process, JSON
	assocSocketsMsg                 // file descriptors of the associations of the next assocsPart
)

// part is what a long thing is, which crosses in pieces.
type part byte

const (
	setupPart    part = iota + 1 // setup, JSON
	clientsPart                  // affinity
	memoryPart                   // round robin positions and counts
	countersPart                 // counters, JSON
	assocsPart                   // SCTP associations; may come several times
)

const (
	maxMessage = 48 << 10  // bytes of a message
	maxPart    = 256 << 20 // bytes of a long thing: 65,536 clients take 3 MiB, and 10,000 Services 30 MiB
	maxFDs     = 253       // SCM_MAX_FD of the kernel
	maxConns   = 1 << 22   // connections, and flows
)

// hello is the first word of a process that takes over.
type hello struct {
	Version int    // of the protocol
	Program string // version of the program
	PID     int
	NetNS   string // the network namespace, as device and inode number
}

// welcome is the answer to hello.
type welcome struct {
	Program string // version of the program
	PID     int
	Files   int // file descriptors that will be passed, about
}

// setup is what is known before the first connection crosses.
type setup struct {
	Seed  uint64 // of the balancer
	Agent agent.State
	TCP   []tcpSockets
	UDP   []udpSockets
	SCTP  sctp.Holding // its file descriptors are in the order of FDs
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
	TCP  tcp.Stats
	UDP  udp.Stats
	SCTP sctp.Stats
}

// Failure is what the other side says when it does not go on.
type Failure struct{ Reason string }

// Error returns the reason.
func (f *Failure) Error() string { return f.Reason }

// checkVersion refuses a process that speaks another version of the protocol.
func (h *hello) checkVersion() error {
	if h.Version == version {
		return nil
	}
	return fmt.Errorf("the new process speaks version %d of the hand-over protocol and the running one version %d: "+
		"stop the running one first, which ends its connections", h.Version, version)
}

// sockets returns how many file descriptors follow the setup.
func (s *setup) sockets() int {
	n := len(s.HTTP)
	for _, l := range s.TCP {
		n += l.Sockets
	}
	for _, l := range s.UDP {
		n += l.Sockets
	}
	s.SCTP.FDs(func(*int) { n++ })
	return n
}
