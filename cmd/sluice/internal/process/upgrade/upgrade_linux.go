package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudflare/tableflip"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/handover"
)

const (
	// startTimeout is how long a successor may take until it serves. It reads its
	// Services before it takes over, from an API server that may be slow.
	startTimeout = 2 * time.Minute

	// takeTimeout bounds the hand-over itself on the side that takes; the other side has
	// bounds of its own, which are shorter.
	takeTimeout = time.Minute

	// channelFile is the name under which a child inherits its end of the conversation.
	channelFile = "handover"
)

// Upgrader is how this process comes to what it serves, and passes it on. The order of
// calls is New, Prepare, Take, Serve, Close; Fail instead of what follows an error.
type Upgrader struct {
	log       *zap.Logger
	flip      *tableflip.Upgrader
	from      *handover.Channel // to the parent process; nil: there is none
	found     bool              // there is a process to take over from
	listeners handover.Listeners
	metrics   *handover.Metrics
	pid       pidFile
	state     *handover.State // what is served; set by Serve
	failed    func(error)     // see Serve

	signals    chan os.Signal // of who wants an upgrade, from the start on
	giving     chan struct{}  // holds a token until Serve, while everything is handed over, and after that or Close
	done       chan struct{}
	alone      chan struct{} // closed when the parent process has ended
	stopping   context.Context
	stop       context.CancelFunc
	socketPath string
	reserved   int              // descriptor for socket, from before anything is taken over; -1: none
	socket     *handover.Socket // nil: this process cannot be asked
	deaf       error            // why there is no socket
	cancel     context.CancelFunc
	turnAway   context.CancelFunc // of who asks for everything
	successor  int                // the child that has everything, once done is closed; 0: it is no child
	background sync.WaitGroup
}

// upgradeSignals are those that ask for an upgrade.
var upgradeSignals = []os.Signal{syscall.SIGHUP, syscall.SIGUSR2}

// New is called once, at the start of the process.
func New() (*Upgrader, error) {
	flip, err := tableflip.New(tableflip.Options{UpgradeTimeout: startTimeout})
	if err != nil {
		return nil, fmt.Errorf("prepare for upgrades: %w", err)
	}
	u := &Upgrader{flip: flip, metrics: handover.NewMetrics(), reserved: -1, signals: make(chan os.Signal, 1),
		giving: make(chan struct{}, 1), done: make(chan struct{}), alone: make(chan struct{})}
	signal.Notify(u.signals, upgradeSignals...) // before Serve, too: a SIGHUP would end what was just taken over
	u.stopping, u.stop = context.WithCancel(context.Background())
	u.giving <- struct{}{}
	file, err := flip.File(channelFile)
	if err != nil {
		return nil, fmt.Errorf("find the channel of the parent process: %w", err)
	}
	if file != nil {
		if u.from, err = handover.FromParent(file); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// Fail reports to the parent process why this one does not take over. False: there is none that
// would log it.
func (u *Upgrader) Fail(err error) bool {
	u.pid.discard()
	if u.from == nil {
		return false
	}
	heard := u.from.Fail(err) == nil
	u.from = nil
	return heard
}

// Prepare looks for a running process to take over from, at the handover socket or as parent.
// Both paths may be empty: there is none.
func (u *Upgrader) Prepare(socketPath, pidPath string, log *zap.Logger) error {
	u.socketPath, u.pid, u.log = socketPath, pidFile(pidPath), log
	u.found = u.from != nil
	if !u.found && socketPath != "" {
		// Only a look: until we know what to serve there may be long to wait.
		ch, err := handover.Dial(socketPath)
		if err != nil {
			return err
		}
		if u.found = ch != nil; u.found {
			ch.Close()
		}
	}
	if u.found {
		log.Info("there is a running process to take over from")
		u.listeners.Pause()
	}
	return u.pid.prepare()
}

// Found reports whether there is a running process to take over from.
func (u *Upgrader) Found() bool { return u.found }

// Unasked reports whether the running process has not started this one: a person or a script has.
func (u *Upgrader) Unasked() bool { return u.found && u.from == nil }

// Listen is net.Listen for the program's HTTP servers, whose sockets are handed over, too.
func (u *Upgrader) Listen(network, addr string) (net.Listener, error) {
	return u.listeners.Listen(network, addr)
}

// Collector is for the metrics. The zero Upgrader has some as well.
func (u *Upgrader) Collector() prometheus.Collector { return cmp.Or(u.metrics, handover.NewMetrics()) }

// Take takes over from the running process, into s. False: there is none, or it has ended.
func (u *Upgrader) Take(ctx context.Context, s *handover.State) (taken bool, err error) {
	if !u.found {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	r, problems, err := u.take(ctx, s)
	switch {
	case errors.Is(err, handover.ErrGone):
		u.log.Warn("the running process ended before the take-over; starting afresh", zap.Error(err))
		u.listeners.Resume()
		return false, nil
	case err != nil:
		return false, err
	}
	u.metrics.Took()
	u.log.Info("took over from the running process", append(report(r), zap.String("version", r.From),
		zap.Duration("freeze_p99", u.metrics.FrozenQuantile(0.99, r.Frozen)), zap.Duration("freeze", r.Frozen))...)
	if problems != nil {
		u.log.Error("not everything could be taken over", zap.Error(problems))
	}
	return true, nil
}

// take takes over from the parent process, or from the one at the handover socket: from another one if that has handed
// over to it while we waited.
func (u *Upgrader) take(ctx context.Context, s *handover.State) (r handover.Report, problems, err error) {
	if err := u.reserve(); err != nil {
		return r, nil, err
	}
	ch := u.from
	u.from = nil // from here on what we call reports errors to the other side
	err = handover.ErrGone
	for {
		if ch == nil && u.socketPath != "" {
			var failed error
			if ch, failed = handover.Dial(u.socketPath); failed != nil {
				return r, nil, failed
			}
		}
		if ch == nil {
			return r, nil, err
		}
		r, problems, err = handover.Take(ctx, ch, s, &u.listeners, u.listen, u.metrics.Frozen)
		if !errors.Is(err, handover.ErrGone) {
			return r, problems, err
		}
		ch = nil
	}
}

// reserve makes sure of the descriptor that listen needs.
func (u *Upgrader) reserve() (err error) {
	if u.socketPath != "" && u.reserved < 0 {
		u.reserved, err = handover.NewSocket()
	}
	return err
}

// listen makes the handover socket, if it is not there. Who has taken over makes it before the other process ends, so
// that the next one finds either. It waits until Serve.
func (u *Upgrader) listen() {
	if u.socketPath == "" || u.socket != nil {
		return
	}
	if u.deaf = u.reserve(); u.deaf == nil {
		u.socket, u.deaf = handover.Listen(u.reserved, u.socketPath)
		u.reserved = -1
	}
}

// report is what both sides log of a hand-over.
func report(r handover.Report) []zap.Field {
	return []zap.Field{zap.Int("peer", r.Peer), zap.Int("tcp_connections", r.Conns), zap.Int("tcp_copied", r.Copied),
		zap.Int("udp_flows", r.Flows), zap.Int("sctp_associations", r.Assocs), zap.Duration("took", r.Took)}
}

// Serve makes this process, which serves s, the one that is to be taken over from. failed is called with why a
// hand-over did not take place.
func (u *Upgrader) Serve(s *handover.State, failed func(error)) {
	u.listeners.Resume()
	u.state, u.failed = s, failed
	<-u.giving
	ctx, cancel := context.WithCancel(context.Background())
	u.cancel = cancel
	requests, turnAway := context.WithCancel(ctx)
	u.turnAway = turnAway
	if u.listen(); u.socket != nil {
		u.background.Go(func() { u.handleRequests(requests) })
	} else if u.deaf != nil { // what was taken over is served anyway
		u.log.Error("hand-over socket unavailable: the next process cannot take over", zap.Error(u.deaf))
	}
	if err := u.pid.commit(); err != nil {
		u.log.Error("the PID file is not written", zap.Error(err))
	}
	if err := u.flip.Ready(); err != nil {
		u.log.Debug("the parent process has ended already", zap.Error(err)) // as it does once we have everything
	}
	u.background.Go(func() { u.awaitParent(ctx) })
	u.background.Go(func() { u.handleSignals(ctx) })
}

// Done is closed when another process has everything.
func (u *Upgrader) Done() <-chan struct{} { return u.done }

// Close ends what Serve has started, before everything is taken down. A successor that has not
// taken over yet is given up; ErrHandedOver says that it has.
func (u *Upgrader) Close() error {
	u.stop()
	select {
	case u.giving <- struct{}{}:
	case <-u.done:
		return ErrHandedOver
	}
	u.cancel()
	if u.socket != nil {
		u.socket.Remove()
	}
	u.pid.remove()
	u.background.Wait()
	return nil
}
