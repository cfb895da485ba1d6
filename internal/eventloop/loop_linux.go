package eventloop

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Event is a set of epoll(7) conditions.
type Event uint32

// The conditions that are reported to a Handler. Hangup stands for EPOLLRDHUP, EPOLLHUP
// and EPOLLERR together: the peer has closed at least its sending side.
const (
	Readable Event = unix.EPOLLIN | unix.EPOLLPRI
	Writable Event = unix.EPOLLOUT
	Hangup   Event = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	Failed   Event = unix.EPOLLHUP | unix.EPOLLERR
)

// Handler handles the events of its descriptor. It runs on the loop and must not block.
type Handler interface {
	// HandleEvent is called when the descriptor may have become what ev says.
	HandleEvent(ev Event)
}

// Latecomer is served at the end of a turn, after the events.
type Latecomer interface {
	// ServeLate works until deadline, in ns of Now's clock, or a little beyond, and at least a little. It reports
	// whether there is more to do, and is called again at the end of the next turn then.
	ServeLate(deadline int64) (more bool)
}

// What a turn of a loop is to take, so that no event waits for long, in ns: latecomers have what is left of turnBudget,
// but not less than a lateShare-th of what came before them took. Deferred events have twice as much.
const (
	turnBudget = int64(100 * time.Microsecond)
	lateShare  = 3
)

// A loop whose timers are late by gapLeast or more reads its sockets first, for at most gapMost; both in ns.
const (
	gapLeast = int64(250 * time.Millisecond)
	gapMost  = int64(time.Second)
)

const (
	// fewEvents are so many that none has to wait for the others: they are handled as they come.
	fewEvents = 16

	// lookEvery is how many deferred events are handled between two looks at the clock.
	lookEvery = 4
)

// ErrClosed is returned by calls on a loop that has stopped.
var ErrClosed = errors.New("event loop is closed")

const pageSize = 1024

// Loop is one event loop. Unless it says otherwise, a method may be called on the
// loop's own goroutine only: from a Handler, an Expirer, or a posted function.
type Loop struct {
	Scratch []byte // read buffer of ScratchSize bytes, whose content lasts only until the current call returns
	Buffers Buffers
	Pipes   Pipes

	index   int
	poller  *poller
	timerFD int
	armed   int64 // deadline the timerfd is set to, ns; 0 when it is not
	due     bool  // it has expired, and timers have not fired yet
	until   int64 // time at which they fire whatever waits in sockets, ns; 0: not known yet
	wheel   wheel
	late    []Latecomer // to be served at the end of this turn
	served  []Latecomer // of the turn before, for the next
	pages   []*page     // by descriptor
	waiting []fdEvent   // deferred ones, of this turn and of those before

	mu     sync.RWMutex // held shared while the poller is being woken, so that it is not closed under a Post
	closed bool         // guarded by mu
	done   chan struct{}
	err    error // why the loop ended, set before done is closed
}

// Add registers fd, which must be non-blocking, for reading and writing, until Close or Detach.
func (l *Loop) Add(fd int, h Handler) error { return l.watch(fd, h, watchBoth) }

// AddRead registers fd for reading only: a listening or datagram socket would be reported as writable with every event.
func (l *Loop) AddRead(fd int, h Handler) error { return l.watch(fd, h, watchRead) }

func (l *Loop) watch(fd int, h Handler, events uint32) error {
	l.set(fd, h)
	if err := l.poller.control(unix.EPOLL_CTL_ADD, fd, events); err != nil {
		l.set(fd, nil)
		return fmt.Errorf("watch descriptor %d: %w", fd, err)
	}
	return nil
}

// AddDeferred is Add for a descriptor whose events are handled after those of others, until Promote: where much
// happens at once, new connections do not delay those that are in use.
func (l *Loop) AddDeferred(fd int, h Handler) error {
	if err := l.Add(fd, h); err != nil {
		return err
	}
	l.pages[fd/pageSize].deferred[fd%pageSize/64] |= 1 << (fd % 64)
	return nil
}

// Promote has the events of fd, which was added by AddDeferred, be handled like others.
func (l *Loop) Promote(fd int) { l.pages[fd/pageSize].promote(fd) }

// Rearm makes the loop report fd's present readiness once more: for a Handler that stopped for fairness.
func (l *Loop) Rearm(fd int) error { return l.poller.control(unix.EPOLL_CTL_MOD, fd, watchBoth) }

// RearmRead is Rearm for a descriptor registered by AddRead.
func (l *Loop) RearmRead(fd int) error { return l.poller.control(unix.EPOLL_CTL_MOD, fd, watchRead) }

// Late has the latecomer served at the end of this turn. One that is to be served already is not to be passed again.
func (l *Loop) Late(who Latecomer) { l.late = append(l.late, who) }

// finish ends a turn that began at a time; 0: just now. It reports whether there is more to do.
func (l *Loop) finish(began int64) (more bool) {
	if l.due && !l.caughtUp() {
		defer func() { more = true }()
	}
	if len(l.waiting)+len(l.late) == 0 {
		return false
	}
	if began == 0 {
		began = Now()
	}
	l.handleWaiting(2 * left(began))
	if len(l.late) > 0 {
		budget := left(began)
		if len(l.waiting) > fewEvents {
			budget = 0 // what latecomers begin has to be finished, too
		}
		l.serveLate(budget)
	}
	return len(l.waiting)+len(l.late) > 0
}

// caughtUp fires what is due after the events of a turn, and reports whether it has. After a gap it first waits until
// the sockets are empty, for as long again at most: a peer whose bytes were not read is not idle.
func (l *Loop) caughtUp() bool {
	now := Now()
	if l.until == 0 {
		l.until = now
		if gap := now - l.armed; gap >= gapLeast {
			l.until += min(gap, gapMost)
		}
	}
	if now < l.until && (l.poller.got > 0 || len(l.waiting) > 0) {
		return false
	}
	l.due, l.until = false, 0
	l.tick()
	return true
}

// left returns how long what comes next in a turn may take.
func left(began int64) int64 {
	took := Now() - began
	return max(turnBudget-took, took/lateShare)
}

// handleWaiting handles deferred events, oldest first, for a time.
func (l *Loop) handleWaiting(budget int64) {
	deadline := Now() + budget
	for i, e := range l.waiting {
		if l.handle(int(e.fd), e.events); i%lookEvery == lookEvery-1 && i+1 < len(l.waiting) && Now() >= deadline {
			l.waiting = append(l.waiting[:0], l.waiting[i+1:]...)
			return
		}
	}
	l.waiting = l.waiting[:0]
}

// serveLate serves the latecomers, who share the time evenly.
func (l *Loop) serveLate(budget int64) {
	each := budget / int64(len(l.late))
	l.late, l.served = l.served[:0], l.late // what comes meanwhile is for the next turn
	for _, who := range l.served {
		if who.ServeLate(Now() + each) {
			l.late = append(l.late, who)
		}
	}
}

// Time returns when the present turn began, or a little later, by Now: for what need not be exact, since it costs a
// call of the clock only in a turn that has not had one.
func (l *Loop) Time() int64 {
	if l.poller.began == 0 {
		l.poller.began = Now()
	}
	return l.poller.began
}

// Index is the loop's position in Group.Loops.
func (l *Loop) Index() int { return l.index }

// walkMost is how many descriptors Walk passes at once: some 20 us if none of them is the loop's.
const walkMost = 32 * pageSize

// Walk passes the handlers of descriptors from one on to visit, in order, until that returns false, or many have been
// passed. It returns the descriptor to go on with; -1: there are no more.
func (l *Loop) Walk(from int, visit func(fd int, h Handler) (more bool)) (next int) {
	from = max(from, 0)
	for fd := from; fd < len(l.pages)*pageSize; fd++ {
		if fd-from >= walkMost {
			return fd
		}
		page := l.pages[fd/pageSize]
		if page == nil {
			fd |= pageSize - 1
			continue
		}
		if h := page.handlers[fd%pageSize]; h != nil && !visit(fd, h) {
			return fd + 1
		}
	}
	return -1
}

// Detach takes fd out of the loop for good, open.
func (l *Loop) Detach(fd int) error {
	l.set(fd, nil)
	return l.poller.remove(fd)
}

// Close ends the events of fd and closes it, which also takes it out of the epoll instance.
func (l *Loop) Close(fd int) error {
	l.set(fd, nil)
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// After starts t, or restarts it if it is running, to fire d from now.
func (l *Loop) After(t *Timer, owner Expirer, d time.Duration) {
	l.wheel.remove(t)
	l.wheel.add(t, owner, Now()+int64(d))
	if deadline := t.when * Tick; l.armed == 0 || deadline < l.armed {
		l.arm(deadline)
	}
}

// StopTimer stops t. Stopping a stopped Timer is fine.
func (l *Loop) StopTimer(t *Timer) { l.wheel.remove(t) }

// Left returns how long t has to run, 0 if it is stopped or due.
func (l *Loop) Left(t *Timer) time.Duration {
	if !t.Active() {
		return 0
	}
	return time.Duration(max(t.when*Tick-Now(), 0))
}

// Post makes the loop run fn soon, unless it stops first, or has (ErrClosed). It may be called from anywhere.
func (l *Loop) Post(fn func()) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return ErrClosed
	}
	return l.poller.post(fn)
}

// Do runs fn on the loop and waits for it. It must not be called on a loop. ErrClosed means that fn did not run.
func (l *Loop) Do(fn func()) error {
	ran := make(chan struct{})
	if err := l.Post(func() { fn(); close(ran) }); err != nil {
		return err
	}
	select {
	case <-ran:
		return nil
	case <-l.done:
	}
	select { // it may have run just before the loop stopped
	case <-ran:
		return nil
	default:
		return ErrClosed
	}
}

// page has the handlers of pageSize descriptors.
type page struct {
	handlers [pageSize]Handler
	deferred [pageSize / 64]uint64 // a bit for each
}

// fdEvent is an event of a descriptor. By the time that it is handled the descriptor may be another's, as may be with
// every event of a turn.
type fdEvent struct {
	fd     int32
	events Event
}

func (p *page) promote(fd int) { p.deferred[fd%pageSize/64] &^= 1 << (fd % 64) }

func (l *Loop) set(fd int, h Handler) {
	n := fd / pageSize
	for n >= len(l.pages) {
		l.pages = append(l.pages, nil)
	}
	if l.pages[n] == nil {
		if h == nil {
			return
		}
		l.pages[n] = new(page)
	}
	l.pages[n].handlers[fd%pageSize] = h
	l.pages[n].promote(fd)
}

// dispatch handles an event, or defers it where there are many.
func (l *Loop) dispatch(fd int, ev Event, many bool) {
	if many {
		if n := fd / pageSize; n < len(l.pages) && l.pages[n] != nil &&
			l.pages[n].deferred[fd%pageSize/64]&(1<<(fd%64)) != 0 {
			l.waiting = append(l.waiting, fdEvent{int32(fd), ev})
			return
		}
	}
	l.handle(fd, ev)
}

func (l *Loop) handle(fd int, ev Event) {
	if fd == l.timerFD {
		l.due = true
		return
	}
	if n := fd / pageSize; n < len(l.pages) && l.pages[n] != nil {
		if h := l.pages[n].handlers[fd%pageSize]; h != nil {
			h.HandleEvent(ev)
		}
	}
}

func (l *Loop) tick() {
	l.armed = 0
	l.wheel.fire(Now())
	// An Expirer may have armed the timerfd already; then it is for the earliest.
	if next := l.wheel.next(); next >= 0 && (l.armed == 0 || next < l.armed) {
		l.arm(next)
	}
}

// arm sets the timerfd to a deadline of Now's clock. It is never read: epoll reports each expiry once.
func (l *Loop) arm(deadline int64) {
	l.armed = deadline
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(deadline-Now(), 1))}
	if err := unix.TimerfdSettime(l.timerFD, 0, &spec, nil); err != nil {
		panic("timerfd_settime refused a positive timeout: " + err.Error()) // cannot happen: EINVAL only
	}
}

func newLoop(index int) (*Loop, error) {
	l := &Loop{index: index, Scratch: make([]byte, ScratchSize), done: make(chan struct{})}
	l.wheel.init(Now())
	var err error
	if l.poller, err = openPoller(); err != nil {
		return nil, err
	}
	if l.timerFD, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return nil, errors.Join(fmt.Errorf("create timerfd: %w", err), l.poller.close())
	}
	if err = l.poller.control(unix.EPOLL_CTL_ADD, l.timerFD, watchRead); err != nil {
		return nil, errors.Join(fmt.Errorf("watch timerfd: %w", err), l.release())
	}
	return l, nil
}

func (l *Loop) run() {
	defer close(l.done)
	err := l.poller.run(l.dispatch, l.finish)
	l.mu.Lock() // after the Posts under way
	l.closed = true
	l.mu.Unlock()
	if err != nil {
		l.err = fmt.Errorf("run event loop %d: %w", l.index, err)
	}
	l.err = errors.Join(l.err, l.release())
}

// stop ends the loop after what was posted before, and waits for it.
func (l *Loop) stop() error {
	l.mu.Lock()
	var err error
	if !l.closed {
		l.closed = true
		err = l.poller.post(func() { l.poller.stopped = true })
	}
	l.mu.Unlock()
	if err != nil {
		return fmt.Errorf("stop event loop %d: %w", l.index, err)
	}
	<-l.done
	return l.err
}

func (l *Loop) release() error {
	l.Pipes.Trim()
	return errors.Join(unix.Close(l.timerFD), l.poller.close())
}

// Group is the loops of one process.
type Group struct {
	loops []*Loop
	stop  sync.Once
	err   error
}

// NewGroup starts n loops, n at least 1. The caller stops them by Close.
func NewGroup(n int) (*Group, error) {
	if n < 1 {
		return nil, fmt.Errorf("start %d event loops: at least 1 is needed", n)
	}
	g := new(Group)
	for i := range n {
		l, err := newLoop(i)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start event loop %d: %w", i, err), g.Close())
		}
		g.loops = append(g.loops, l)
		go l.run()
	}
	return g, nil
}

// Loops returns the loops, in order of their index. The slice is not to be changed.
func (g *Group) Loops() []*Loop { return g.loops }

// Each runs fn on every loop at once, with the loop's index, and waits.
func (g *Group) Each(fn func(i int)) error {
	errs := make([]error, len(g.loops))
	var all sync.WaitGroup
	for i, l := range g.loops {
		all.Go(func() { errs[i] = l.Do(func() { fn(i) }) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Halt stops every loop between two events until resume is called, once. What belongs to the loops may be used by the
// caller meanwhile; what happens to descriptors is reported afterwards. Post still takes functions, and Do waits. The
// error is ErrClosed if a loop has stopped for good; then none is halted.
func (g *Group) Halt() (resume func(), err error) {
	release := make(chan struct{})
	arrived := make(chan struct{}, len(g.loops))
	posted := 0
	for _, l := range g.loops {
		if err = l.Post(func() { arrived <- struct{}{}; <-release }); err != nil {
			break
		}
		posted++
	}
	for _, l := range g.loops[:posted] {
		select {
		case <-arrived:
		case <-l.done:
			err = ErrClosed
		}
	}
	if err != nil {
		close(release)
		return nil, err
	}
	return func() { close(release) }, nil
}

// Close stops every loop and waits until they have ended. Descriptors that are still registered stay open. It may be
// called more than once and from any goroutine but a loop's.
func (g *Group) Close() error {
	g.stop.Do(func() {
		for _, l := range g.loops {
			g.err = errors.Join(g.err, l.stop())
		}
	})
	return g.err
}
