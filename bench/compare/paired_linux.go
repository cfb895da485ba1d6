package main

import (
	"cmp"
	"context"
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
	"github.com/sluice-lb/sluice/bench/testbed"
	"golang.org/x/sys/unix"
)

// pairedRequests is of how many requests a turn is.
const pairedRequests = 200

// pairedWorkload says what the builds are asked.
type pairedWorkload struct {
	conns    int   // that stay; every request is on one of them
	services []int // or else, how many Services each build has, once with each number: a new client makes each request,
	asked    int   // to one of so many of them, with each number the same,
	changes  int   // and so many times one of them is changed, removed and added before
	turns    int   // that every build has after each start
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

// twins returns the builds, each once with every number of Services.
func (o options) twins(w pairedWorkload) (all []*twin) {
	for _, s := range slices.Concat(systems[:1], o.also) {
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

// twin is one of the builds that run side by side, with what it took in each start, in us per request:
// processor time, or the time to the first byte of a new client.
type twin struct {
	system
	name   string
	size   int   // how many Services it has
	beside *twin // that it is compared with; nil for the first
	*lab
	*running
	conns  []net.Conn
	answer []byte   // as long as one
	ips    []string // of the Services that new clients ask
	took   []float64
	change []float64 // what each change took, in ms, over all starts
}

// pair measures builds more closely than rounds can: all run at once, each in a lab of its own, and get requests by
// turns of some milliseconds, so that what else happens on the machine happens to all of them.
func (o options) pair(ctx context.Context, work pairedWorkload, w io.Writer) (twins []*twin, err error) {
	twins = o.twins(work)
	if o.rounds == 0 {
		o.rounds = 10
	}
	for n := range o.rounds {
		if err := o.start(ctx, work, twins); err != nil {
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

// start starts every build once, in any order, and adds what each takes.
func (o options) start(ctx context.Context, w pairedWorkload, twins []*twin) error {
	defer func() {
		for _, t := range twins {
			t.end()
		}
	}()
	for _, i := range rand.Perm(len(twins)) {
		if err := twins[i].begin(ctx, o.sluice, w); err != nil {
			return fmt.Errorf("start %s: %w", twins[i].name, err)
		}
	}
	if err := twins[0].cores.leave(); err != nil {
		return err
	}
	took := make([][]float64, len(twins))
	for range w.turns {
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
	for range w.conns {
		if err := t.connect(ctx); err != nil {
			return err
		}
	}
	return nil
}

// connect adds a connection.
func (t *twin) connect(ctx context.Context) error {
	c, err := t.tb.Client.Dial(ctx, "tcp", t.services[0].addr())
	if err != nil {
		return err
	}
	t.conns = append(t.conns, c)
	if _, err := io.WriteString(c, pairedRequest); err != nil {
		return err
	}
	t.answer = make([]byte, 1024)
	n, err := c.Read(t.answer)
	t.answer = t.answer[:n]
	return err
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
		return t.ask()
	}
	err = t.tb.Client.Do(func() (err error) { took, err = t.meet(); return err })
	return took, err
}

// ask makes requests, on all connections at once, and returns the processor time of each in us.
func (t *twin) ask() (float64, error) {
	before, err := measureUsage(t.pid(), t.cores.proxy)
	if err != nil {
		return 0, err
	}
	made := 0
	for ; made < pairedRequests; made += len(t.conns) {
		for _, c := range t.conns {
			if _, err := io.WriteString(c, pairedRequest); err != nil {
				return 0, err
			}
		}
		for _, c := range t.conns {
			if _, err := io.ReadFull(c, t.answer); err != nil {
				return 0, err
			}
		}
	}
	after, err := measureUsage(t.pid(), t.cores.proxy)
	return float64(after.minus(before).process.Nanoseconds()) / 1000 / float64(made), err
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

func (t *twin) end() {
	for _, c := range t.conns {
		_ = c.Close()
	}
	if t.running != nil {
		_ = t.stop()
	}
	if t.lab != nil {
		t.lab.close()
	}
	t.conns, t.running, t.lab = nil, nil, nil
}
