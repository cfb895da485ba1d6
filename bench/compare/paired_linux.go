package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/bench/stats"
	"github.com/sluice-lb/sluice/internal/testbed"
	"golang.org/x/sys/unix"
)

// pairedRequests is of how many requests a turn is.
const pairedRequests = 200

// pairedWorkload says what the builds are asked.
type pairedWorkload struct {
	conns    int   // that stay; every request is on one of them
	clock    bool  // the time of a request counts, not the processor time of the proxy
	services []int // or else, how many Services each build has, once with each number: a new client asks each time,
	asked    int   // one of so many of them, with each number the same,
	changes  int   // and so many times one of them is changed, removed and added before
	turns    int   // that every build has after each start, at least

	lasts time.Duration // there are as many turns as take so long, at least
}

// parsePaired takes the value of -paired.
func parsePaired(name string) (w pairedWorkload, err error) {
	w.turns = 100
	for part := range strings.SplitSeq(name, ",") {
		kind, number, _ := strings.Cut(part, "-")
		n, err := strconv.Atoi(number)
		switch {
		case err == nil && kind == "rr" && n >= 1 && n <= 1000 && part == name:
			w.conns = n
		case err == nil && kind == "services" && n >= 2 && n <= 10000:
			w.services, w.changes = append(w.services, n), changesOf
		default:
			return w, fmt.Errorf("measure %q side by side: want rr-1 to rr-1000, or services-2 to services-10000, "+
				"or a list of the latter", name)
		}
	}
	if len(w.services) > 0 {
		w.asked = min(slices.Min(w.services)-1, mostAsked)
	}
	return w, nil
}

// side returns what is measured side by side: the systems that are asked for, else Sluice, and the other builds.
func (o options) side() (all []system, err error) {
	if o.systems == "" {
		return slices.Concat(systems[:1], o.also), notInstalled(labPrograms)
	}
	all, lacking, err := o.chooseSystems("")
	if err == nil && len(lacking) > 0 {
		err = fmt.Errorf("measure side by side: %s", strings.Join(lacking, "; "))
	}
	if err != nil {
		return nil, err
	}
	programs := slices.Clone(labPrograms)
	for _, s := range all {
		if s.needs != "" {
			programs = append(programs, s.needs)
		}
	}
	return all, notInstalled(programs)
}

// twins returns what runs side by side, each once with every number of Services.
func (w pairedWorkload) twins(side []system) (all []*twin) {
	for _, s := range side {
		first := &twin{system: s, name: s.name}
		if len(all) > 0 {
			first.beside = all[0]
		}
		if len(w.services) == 0 {
			all = append(all, first)
			continue
		}
		first.size = w.services[0]
		all = append(all, first)
		for _, n := range w.services[1:] {
			name := fmt.Sprintf("%s of %d Services", s.name, n)
			all = append(all, &twin{system: s, name: name, size: n, beside: first})
		}
	}
	return all
}

const pairedRequest = "GET / HTTP/1.1\r\nHost: sluice.test\r\n\r\n"

// twin is one of the systems or builds that run side by side, with what it took in each start, in us per request:
// processor time, time by the clock, or the time to the first byte of a new client.
type twin struct {
	system
	name   string
	size   int   // how many Services it has
	beside *twin // that it is compared with; nil for the first
	*lab
	*running
	conns  []*os.File
	poll   int // an epoll of them
	events [64]unix.EpollEvent
	answer []byte   // as long as one
	ips    []string // of the Services that new clients ask
	took   []float64
	change []float64 // what each change took, in ms, over all starts
}

// pair measures builds more closely than rounds can: all run at once, each in a lab of its own, and get requests by
// turns of some milliseconds, so that what else happens on the machine happens to all of them.
func (o options) pair(ctx context.Context, work pairedWorkload, w io.Writer) (twins []*twin, err error) {
	side, err := o.side()
	if err != nil {
		return nil, err
	}
	twins = work.twins(side)
	c, err := chooseCores()
	if err != nil {
		return nil, err
	}
	rep, err := plan{systems: side}.report(ctx, c, o.sluice)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(w, strings.Join(rep.Subjects(), "\n"))
	if o.rounds == 0 {
		o.rounds = 10
	}
	for n := range o.rounds {
		if err := work.start(ctx, o.sluice, twins); err != nil {
			return nil, err
		}
		fmt.Fprintf(w, "start %d:", n+1)
		for _, t := range twins {
			fmt.Fprintf(w, "  %s %.2f us", t.name, t.took[n])
		}
		fmt.Fprintln(w)
	}
	for _, t := range twins {
		if n := len(t.change); n > 0 {
			fmt.Fprintf(w, "%s: %d changes, median %.2f ms, p90 %.2f ms, p99 %.2f ms\n", t.name, n,
				stats.Median(t.change), stats.Percentile(t.change, 90), stats.Percentile(t.change, 99))
		}
	}
	for _, t := range twins[1:] {
		mean, deviation := stats.Mean(stats.Ratios(t.took, t.beside.took))
		fmt.Fprintf(w, "%s / %s: %.3f, standard error %.3f\n", t.name, t.beside.name, mean, deviation)
	}
	return twins, nil
}

// start starts every twin once, in any order, and adds what each takes.
func (w pairedWorkload) start(ctx context.Context, sluice string, twins []*twin) (err error) {
	defer func() {
		for _, t := range twins {
			err = errors.Join(err, t.end())
		}
	}()
	for _, i := range rand.Perm(len(twins)) {
		if err := twins[i].begin(ctx, sluice, w); err != nil {
			return fmt.Errorf("start %s: %w", twins[i].name, err)
		}
	}
	if err := twins[0].cores.leave(); err != nil {
		return err
	}
	took := make([][]float64, len(twins))
	for began, n := time.Now(), 0; n < w.turns || time.Since(began) < w.lasts; n++ {
		for _, i := range rand.Perm(len(twins)) {
			turn, err := twins[i].turn(w)
			if err != nil {
				return fmt.Errorf("ask %s: %w", twins[i].name, err)
			}
			took[i] = append(took[i], turn)
		}
	}
	for i, t := range twins {
		t.took = append(t.took, stats.Median(took[i]))
	}
	return nil
}

func (t *twin) begin(ctx context.Context, sluice string, w pairedWorkload) (err error) {
	if t.lab, err = newLab(ctx, cmp.Or(t.build, sluice)); err != nil {
		return err
	}
	if err = t.cores.comeBack(); err != nil { // the next lab chooses among all
		return err
	}
	if t.size > 0 {
		return t.load(ctx, w)
	}
	if t.running, err = t.system.start(ctx, t.lab); err != nil {
		return err
	}
	if t.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	for range w.conns {
		if err := t.connect(ctx); err != nil {
			return err
		}
	}
	return t.settle(ctx, t.pid())
}

// connect adds a connection. Its socket blocks: Go's would measure its own poller, too.
func (t *twin) connect(ctx context.Context) error {
	addrs := t.addrs(t.services[0])
	c, err := t.tb.Client.Dial(ctx, "tcp", addrs[len(t.conns)%len(addrs)])
	if err != nil {
		return err
	}
	defer c.Close() // File has its own
	if _, err := io.WriteString(c, pairedRequest); err != nil {
		return err
	}
	t.answer = make([]byte, 1024)
	n, err := c.Read(t.answer)
	if err != nil {
		return err
	}
	t.answer = t.answer[:n]
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		return err
	}
	t.conns = append(t.conns, f)
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(t.poll, unix.EPOLL_CTL_ADD, int(f.Fd()),
		&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(f.Fd())}))
}

// load starts the build with many Services, and makes the changes of that workload.
func (t *twin) load(ctx context.Context, w pairedWorkload) (err error) {
	s := &scaled{lab: t.lab, protocol: "TCP", services: t.size, port: t.services[0].target,
		flags: t.flags}
	if t.running, _, err = s.start(ctx); err != nil {
		return err
	}
	t.ips = s.others(w.asked)
	took, _, _, err := s.changes(ctx, w.changes)
	t.change = append(t.change, took...)
	return err
}

func (t *twin) turn(w pairedWorkload) (took float64, err error) {
	if w.conns > 0 {
		return t.ask(w.clock)
	}
	err = t.tb.Client.Do(func() (err error) { took, err = t.meet(); return err })
	return took, err
}

// ask makes requests, on all connections at once, and returns what each takes in us: processor time of the proxy, or
// time by the clock. The latter is processor time of client, kernel and servers, which share a core.
func (t *twin) ask(clock bool) (float64, error) {
	before, err := measureUsage(t.pid(), t.cores.proxy)
	if err != nil {
		return 0, err
	}
	started, made := time.Now(), 0
	for ; made < pairedRequests; made += len(t.conns) {
		for _, c := range t.conns {
			if _, err := unix.Write(int(c.Fd()), []byte(pairedRequest)); err != nil {
				return 0, os.NewSyscallError("write", err)
			}
		}
		if err := t.readAll(); err != nil {
			return 0, err
		}
	}
	took := time.Since(started)
	after, err := measureUsage(t.pid(), t.cores.proxy)
	if !clock {
		took = after.minus(before).process
	}
	return float64(took.Nanoseconds()) / 1000 / float64(made), err
}

// readAll reads an answer from each connection, as they come.
func (t *twin) readAll() error {
	for left := len(t.conns) * len(t.answer); left > 0; {
		ready, err := unix.EpollWait(t.poll, t.events[:], int(testbed.Patience.Milliseconds()))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return os.NewSyscallError("epoll_wait", err)
		case ready == 0:
			return errors.New("no answer came")
		}
		for _, ev := range t.events[:ready] {
			n, err := unix.Read(int(ev.Fd), t.answer)
			if n <= 0 {
				return fmt.Errorf("read an answer: %d bytes: %w", n, err)
			}
			left -= n
		}
	}
	return nil
}

// meet has one new client after the other ask, and returns the median time to their first bytes in us.
// Each resets its connection at last, so that no port is in TIME_WAIT when another client has it.
func (t *twin) meet() (float64, error) {
	var took []float64
	for range pairedRequests {
		first, err := firstByte(netip.MustParseAddr(t.ips[rand.IntN(len(t.ips))]))
		if err != nil {
			return 0, err
		}
		took = append(took, float64(first.Nanoseconds())/1000)
	}
	return stats.Median(took), nil
}

// firstByte uses a blocking socket: Go's would measure how long goroutines take to wake each other, too.
func firstByte(ip netip.Addr) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// With SO_RCVTIMEO each signal would end a call: signal(7).
	giveUp := time.AfterFunc(testbed.Patience, func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
	defer giveUp.Stop()
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	started := time.Now()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: ip.As4()}); err != nil {
		return 0, fmt.Errorf("connect %s: %w", ip, err)
	}
	if _, err := unix.Write(fd, []byte(pairedRequest)); err != nil {
		return 0, os.NewSyscallError("write", err)
	}
	var answer [1024]byte
	n, err := unix.Read(fd, answer[:])
	if n <= 0 {
		return 0, fmt.Errorf("read from %s: %d bytes: %w", ip, n, err)
	}
	return time.Since(started), nil
}

// end stops all that the twin runs.
func (t *twin) end() (err error) {
	for _, c := range t.conns {
		_ = c.Close()
	}
	if t.poll > 0 {
		_ = unix.Close(t.poll)
	}
	if t.running != nil {
		err = t.stop()
	}
	if t.lab != nil {
		t.lab.close()
	}
	t.conns, t.poll, t.running, t.lab = nil, 0, nil, nil
	return err
}
