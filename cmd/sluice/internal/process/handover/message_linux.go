package handover

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// version is that of the protocol. It rises only for what another version would misread: a field that is not at the end
// of its record, carries a file descriptor or changes its meaning, and another kind or order of messages.
const version = 15

// kind is the type of a message, the first byte of each of its pieces.
type kind byte

const (
	helloMsg         kind = iota + 1 // Hello, JSON
	setupMsg                         // setup, JSON, with the token and the descriptors that eachFD lists
	failedMsg                        // why it does not go on, text; from either side
	clientsMsg                       // affinity
	memoryMsg                        // round robin positions and counts
	offersMsg                        // connections that relay meanwhile
	preparedMsg                      // nothing
	readyMsg                         // nothing
	frozenMsg                        // when the pause started, CLOCK_MONOTONIC, ns, JSON
	connsMsg                         // connections that have stopped
	flowsMsg                         // UDP flows
	assocsMsg                        // SCTP associations
	countersMsg                      // counters, JSON
	commitMsg                        // nothing
	committedMsg                     // nothing
	upgradedMsg                      // answers a Hello that requests an upgrade: the new process, JSON
	conversationsMsg                 // UDP clients that are remembered
	ratesMsg                         // what clients have used of their rates
	timesMsg                         // histograms of Services
	whysMsg                          // why flows that the kernel forwards have their endpoints

	goesOn kind = 0x80 // is added to the type in all pieces of a message but the last
)

const (
	maxPiece   = 48 << 10  // bytes of a piece
	maxMessage = 256 << 20 // bytes of a message: 65,536 clients take 3 MiB, and 10,000 Services 30 MiB
	maxFDs     = 253       // of a piece: SCM_MAX_FD of the kernel
)

// Hello is the first word of a process: it takes over, or requests an upgrade.
type Hello struct {
	Version int    // of the protocol
	Program string // version of the program
	PID     int    // as the kernel reports it, if it can be seen from here, once it was received
	NetNS   string // the network namespace, as device and inode number
	Upgrade bool   // the running process is to upgrade itself
}

// setup is what is known before the first connection crosses.
type setup struct {
	Program string // version of the program
	PID     int
	Files   int    // file descriptors that will follow, about
	Seed    uint64 // of the balancer

	Manifests []string // of State.Manifests

	Agent  agent.State
	TCP    []tcp.Listening
	UDP    []udp.Listening
	SCTP   sctp.Holding
	HTTP   []httpSocket
	Events []journal.Entry
	Ended  []report.Ended
}

// httpSocket is a socket of Listeners.
type httpSocket struct {
	Address
	FD int
}

// eachFD passes every descriptor to visit, which may change it, in an order that depends on
// nothing else.
func (s *setup) eachFD(visit func(fd *int)) {
	all := func(fds []int) {
		for i := range fds {
			visit(&fds[i])
		}
	}
	for _, l := range s.TCP {
		all(l.FDs)
	}
	for _, l := range s.UDP {
		all(l.FDs)
	}
	s.SCTP.FDs(visit)
	for i := range s.HTTP {
		visit(&s.HTTP[i].FD)
	}
}

// plain is a setup whose times are host time.
type plain setup

// MarshalJSON has every time on the clock of the loops cross as host time.
func (s setup) MarshalJSON() ([]byte, error) {
	s.Agent.Drains = slices.Clone(s.Agent.Drains)
	s.eachInstant(func(v *int64) { *v = shift(*v, hostClock()) })
	return json.Marshal(plain(s))
}

// UnmarshalJSON reads what MarshalJSON has written.
func (s *setup) UnmarshalJSON(b []byte) error {
	err := json.Unmarshal(b, (*plain)(s))
	s.eachInstant(func(v *int64) { *v = shift(*v, -hostClock()) })
	return err
}

func (s *setup) eachInstant(visit func(*int64)) {
	for i := range s.Agent.Drains {
		visit(&s.Agent.Drains[i].Deadline)
	}
}

// listensAt reports whether there is such a socket of UDP.
func (s *setup) listensAt(frontend, member int) bool {
	return frontend >= 0 && frontend < len(s.UDP) && member >= 0 && member < len(s.UDP[frontend].FDs)
}

// counters are those of the data path.
type counters struct {
	TCP  tcp.Stats
	UDP  udp.Stats
	SCTP sctp.Stats

	OverShare []overShare
	Events    []journal.Entry // since setup
	Ended     []report.Ended  // in place of those of setup
}

// overShare is how often a Service has exceeded its share.
type overShare struct {
	Service lb.ID
	Times   uint64
}

// Failure is what the other side says when it does not go on.
type Failure struct{ Reason string }

// Error returns the reason.
func (f *Failure) Error() string { return f.Reason }

// check refuses a process that cannot take over.
func (h *Hello) check() error {
	if h.Version != version {
		return fmt.Errorf("the new process speaks version %d of the hand-over protocol and the running one "+
			"version %d: stop the running one first, which ends its connections", h.Version, version)
	}
	ours, err := networkNamespace()
	if err == nil && h.NetNS != ours {
		err = fmt.Errorf("the new process is in network namespace %s and the running one in %s: listening sockets "+
			"stay in theirs, so both must be in the same one (for a pod: hostNetwork: true)", h.NetNS, ours)
	}
	return err
}
