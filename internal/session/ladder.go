package session

import (
	"cmp"
	"errors"
	"math"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// How long, and how often, what is short is waited for.
const (
	ShortageRetry = 100 * time.Millisecond // how long a dial waits for descriptors, ports or memory of this host
	maxShortages  = 20                     // how often it does so
	AcceptRetry   = 10 * time.Millisecond  // how often a paused listener looks whether it may accept again
)

// Config is what holds for all connections of a server. Loops and LB are needed; every other zero value has a default.
type Config struct {
	// Loops run the connections. They must outlive the server: close that first.
	Loops *eventloop.Group

	// LB chooses backends.
	LB *balancer.Balancer

	// Descriptors bounds the sockets of all connections, two for each. nil: no bound.
	Descriptors *eventloop.Budget

	// DialTimeouts is how long each attempt to reach a backend may take; its length is the number of attempts.
	// Empty: 250 ms, 500 ms, 1 s, 2 s, as kube-proxy's userspace mode had it.
	DialTimeouts []time.Duration

	// MaxDials bounds the dials of each loop, in flight or ready; more clients wait in the backlog. 0: 4,096.
	MaxDials int

	// OriginalDst returns what the client of an accepted socket has asked for, before the kernel sent it here. It must
	// not block. TCP's ListenSteered needs it; for SCTP nil means that it is not known.
	OriginalDst func(fd int) (netip.AddrPort, error)

	// Log gets what has ended, as Policies.AccessLog requests it, on the loop. It must not wait. nil: nothing is
	// logged.
	Log func(*look.Ended)

	// LogSample has one of so many be logged. 0: all.
	LogSample int

	// Shares bound what one Service and one client have of the descriptors and of the dials. Clients beyond are reset.
	Shares shares.Shares
}

// WithDefaults returns c with a value for each limit that is zero.
func (c Config) WithDefaults() Config {
	if len(c.DialTimeouts) == 0 {
		c.DialTimeouts = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
	}
	c.MaxDials = cmp.Or(c.MaxDials, 4096)
	return c
}

// Ladder is a client's way from one backend to the next until one answers. It must not be moved after Start.
type Ladder struct {
	flow      balancer.Flow
	tried     balancer.Tried
	why       lb.Why // of the last choice
	attempt   int    // attempts that have ended
	attempts  int    // how many there may be; 0: it is not known yet
	shortages int    // waits for resources of this host so far
}

// Start begins at the first attempt.
func (l *Ladder) Start(flow balancer.Flow) {
	*l = Ladder{flow: flow}
	l.flow.Tried, l.flow.Why = &l.tried, &l.why
}

// errGaveUp says that every attempt has failed.
var errGaveUp = errors.New("every attempt has failed")

// Next returns the backend to try and how long it may take to answer. An error, which Refuse counts, says why there is
// none.
func (l *Ladder) Next(s *Config) (choice balancer.Choice, timeout time.Duration, err error) {
	return l.Turn(s, balancer.Choice{})
}

// Turn is Next for a client that has waited for a choice in the queue, or has none.
func (l *Ladder) Turn(s *Config, turn balancer.Choice) (choice balancer.Choice, timeout time.Duration, err error) {
	if l.attempt > 0 && l.attempt >= l.attempts {
		turn.Done(nil)
		return choice, 0, errGaveUp
	}
	l.flow.Now, l.why = eventloop.Now(), lb.ByQueue
	if choice = turn; !choice.Valid() {
		if choice, err = s.LB.Pick(l.flow); err != nil {
			return choice, 0, err
		}
	}
	p := choice.Policies()
	l.attempts = attempts(s, p)
	return choice, s.timeout(p, l.attempt), nil
}

// Flow returns what the client has asked for.
func (l *Ladder) Flow() *balancer.Flow { return &l.flow }

// Queue has the client wait for its turn, for so long (in ns), after Next has returned balancer.ErrFull.
func (l *Ladder) Queue(s *Config, w *balancer.Waiter) (wait int64, err error) {
	return s.LB.Queues().Join(w, &l.flow, l.flow.Now)
}

// attempts returns how many attempts there may be.
func attempts(s *Config, p *lb.Policies) int {
	if p.ConnectAttempts > 0 {
		return int(p.ConnectAttempts)
	}
	return len(s.DialTimeouts)
}

// maxConnectTimeout bounds what doubling makes of a timeout.
const maxConnectTimeout = time.Minute

// timeout returns how long the nth attempt may take, counted from 0.
func (c *Config) timeout(p *lb.Policies, nth int) time.Duration {
	if p.ConnectTimeout > 0 {
		t := time.Duration(p.ConnectTimeout)
		return max(t, min(t<<min(nth, 8), maxConnectTimeout))
	}
	return c.DialTimeouts[min(nth, len(c.DialTimeouts)-1)]
}

// Stays reports whether an attempt that was not answered in time goes on as the next one, with the socket that it has,
// and for how long: if the backend is the only one, and is asked for the second time. The kernel repeats the SYN, and
// many clients of a silent backend cost half the connects. A first attempt is made anew, which repairs the loss of a
// SYN before the kernel would (after 1 s, as RFC 6298 has it; SCTP would wait for 3 s, and so does not stay).
func (l *Ladder) Stays(s *Config, choice balancer.Choice) (timeout time.Duration, ok bool) {
	if l.attempt == 0 || l.attempt+1 >= l.attempts || choice.Service().Protocol != lb.TCP ||
		!s.LB.Only(l.flow, choice) {
		return 0, false
	}
	l.attempt++
	return s.timeout(choice.Policies(), l.attempt), true
}

// Failed ends an attempt: the backend will not be tried again.
func (l *Ladder) Failed(choice balancer.Choice) {
	l.tried.Add(choice)
	l.attempt++
}

// Answered ends the last attempt: the backend has accepted. It returns the time.
func (l *Ladder) Answered(choice balancer.Choice) (now int64) {
	now = eventloop.Now()
	choice.Answered()
	choice.Took(now-l.flow.Now, now)
	return now
}

// End gives back the choice of an attempt that has failed, and returns what is left of it: nothing, unless what
// this host lacks was the reason. A backend that resets before it is seen that it has accepted has accepted: Linux
// says ECONNREFUSED of one that has not (tcp_reset).
func (l *Ladder) End(choice balancer.Choice, err error) balancer.Choice {
	switch {
	case Shortage(err):
		return choice
	case errors.Is(err, syscall.ECONNRESET):
		choice.Answered()
		choice.WasReset(ErrReset, l.flow.Client, eventloop.Now())
	default:
		choice.Failed(err, eventloop.Now())
	}
	return balancer.Choice{}
}

// ErrReset says that a backend has reset a connection before its first byte.
var ErrReset = errors.New("reset before the first byte")

// Why returns why the last choice was made.
func (l *Ladder) Why() lb.Why { return l.why }

// Tried returns how many attempts have failed, and the backends that have.
func (l *Ladder) Tried() (attempts int, backends []netip.AddrPort) {
	return l.attempt, l.tried.Backends()
}

// EndOf says how a connection ends whose client gets no endpoint; silent: the last one that failed was.
func EndOf(err error, silent bool) lb.End {
	switch {
	case errors.Is(err, balancer.ErrFull), errors.Is(err, balancer.ErrQueueFull):
		return lb.QueueFull
	case errors.Is(err, balancer.ErrNotAllowed):
		return lb.NotAllowed
	case silent:
		return lb.ServerTimeout
	}
	return lb.ServerConnect
}

// Gone ends an attempt whose backend was removed meanwhile; it does not count.
func (l *Ladder) Gone(choice balancer.Choice) {
	l.Failed(choice)
	l.attempt--
}

// PassOver notes that a backend cannot be tried now, which takes no attempt. False: it was tried before, so that every
// backend that can be remembered was.
func (l *Ladder) PassOver(choice balancer.Choice) bool { return l.tried.Add(choice) }

// Short reports whether an attempt that failed for lack of something of this host, which is not the backend's
// fault, may be made again after ShortageRetry. It counts the wait.
func (l *Ladder) Short(count *Counters) bool {
	if l.shortages >= maxShortages {
		return false
	}
	l.shortages++
	count.Shortages.Add(1)
	return true
}

// divisible is how many descriptors there must be for them to be divided into shares: those of 32 connections. With
// fewer, as ulimit -n 64 leaves, what a share keeps free would be no connection, and clients wait.
const divisible = 64

// Room returns what is free on one of some loops whose dials in flight are so many. Of the descriptors those of one
// connection have been taken for the one that is to be admitted.
func (c *Config) Room(loops int, dialling int64) Room {
	r := Room{Conns: math.MaxInt32, Dials: int64(c.MaxDials) - dialling}
	if b := c.Descriptors; b != nil && b.Limit >= divisible {
		each := 2 * int64(loops)
		r.Conns = (b.Free() + 2 + each - 1) / each
	}
	return r
}

// Shortage reports whether a call failed for lack of something of this host.
func Shortage(err error) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	return ok && slices.Contains(shortages, errno)
}

// Kept is what a hand-over says of a connection: for who looks at it, and for the policies of its Service. Times are on
// the clock of eventloop.Now; 0: not known.
type Kept struct {
	Born       int64         // when it was accepted
	Answered   int64         // when its backend answered
	Active     int64         // when bytes were last found to have moved
	ClientEnd  int64         // when the client was found to have ended its stream
	BackendEnd int64         // when the backend was
	Gone       int64         // when its backend was found to have left
	In, Out    uint64        // bytes that were passed on
	Counted    bool          // for the limits of its client
	Chance     uint32        // of 2^32, that shortens its life
	Drain      time.Duration // how long it may stay where that has left; below 0: for ever; 0: it has not

	Why lb.Why // it has this backend, as far as that is noted, to be logged
}

// Dialling is what a hand-over says of a connection whose backend has not answered.
type Dialling struct {
	Frontend  lb.Frontend
	Client    netip.Addr
	Port      uint16           // of the client; 0: not known
	Tried     []netip.AddrPort // backends that have failed
	Attempt   int              // attempts that have ended
	Shortages int              // waits for local resources so far
	Left      time.Duration    // of the present attempt or wait
	Held      bool             // it waits since there is no backend
	Queued    int64            // when it came that waits since no backend has room, by eventloop.Now; 0: does not wait
}

// Freeze returns what another process needs to continue, but for Left.
func (l *Ladder) Freeze() Dialling {
	return Dialling{Frontend: l.flow.Frontend, Client: l.flow.Client, Port: l.flow.ClientPort,
		Tried: l.tried.Backends(), Attempt: l.attempt, Shortages: l.shortages}
}

// Thaw continues where another process has frozen a Ladder, with a backend of service if it was waiting for one.
func (l *Ladder) Thaw(config *Config, d *Dialling, service lb.ID, backend netip.AddrPort) {
	b := config.LB
	if owner, _, ok := b.Table().Lookup(d.Frontend); ok && !backend.IsValid() {
		service = owner.ID
	}
	l.Start(balancer.Flow{Frontend: d.Frontend, Client: d.Client, ClientPort: d.Port, Now: eventloop.Now()})
	l.tried, l.attempt, l.shortages = b.Memory().ResumeTried(service, d.Tried), d.Attempt, d.Shortages
	l.attempts = attempts(config, b.Policies(d.Frontend))
}

// Resume makes a choice that another process has made: none if backend is invalid.
func Resume(b *balancer.Balancer, service lb.ID, backend netip.AddrPort) balancer.Choice {
	if !backend.IsValid() {
		return balancer.Choice{}
	}
	return b.Memory().Resume(service, backend)
}
