package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/bench/report"
)

// descriptors is how many each process may have: enough for two for each of the most
// connections of any workload, and for HAProxy's pipes.
const descriptors = 262144

// cores says what runs where.
type cores struct {
	proxy int
	load  []int       // empty: there is only one core, for everything
	all   unix.CPUSet // that this program may use
}

// several returns the cores of a proxy with some workers and those of the load, as taskset(1) reads them: both have all
// where there are not enough for each to have its own.
func (c cores) several(workers int) (proxy, load string) {
	all := cores{load: append(slices.Clone(c.load), c.proxy)}
	if len(all.load) <= workers {
		return all.loadList(), all.loadList()
	}
	rest := len(all.load) - workers
	return cores{load: all.load[rest:]}.loadList(), cores{load: all.load[:rest]}.loadList()
}

// proxyList returns the proxy's core as taskset(1) reads it, "" for any.
func (c cores) proxyList() string {
	if len(c.load) == 0 {
		return ""
	}
	return strconv.Itoa(c.proxy)
}

// loadList returns the other cores.
func (c cores) loadList() string {
	var parts []string
	for _, n := range c.load {
		parts = append(parts, strconv.Itoa(n))
	}
	return strings.Join(parts, ",")
}

// inVM reports whether this is the machine of bench/vm.
func inVM() bool { return os.Getenv("SLUICE_VM") != "" }

// chooseCores takes the last core that we may use for the proxy, and all other cores for
// the rest.
func chooseCores() (c cores, err error) {
	if err := unix.SchedGetaffinity(0, &c.all); err != nil {
		return c, fmt.Errorf("ask for cores: %w", err)
	}
	var list []int
	for i := range 1024 { // as many as a CPUSet holds
		if c.all.IsSet(i) {
			list = append(list, i)
		}
	}
	if len(list) == 1 && inVM() { // its figures are of all that runs there
		c.proxy = list[0]
		return c, nil
	}
	if len(list) < 2 {
		return c, errors.New("measure with one core: the proxy needs one for itself, and load and servers another")
	}
	c.proxy, c.load = list[len(list)-1], list[:len(list)-1]
	return c, nil
}

// leave moves this program away from the proxy's core, and comeBack lets it use all
// of its cores again.
func (c cores) leave() error {
	if len(c.load) == 0 {
		return nil
	}
	set := c.all
	set.Clear(c.proxy)
	return moveTo(&set)
}

func (c cores) comeBack() error { return moveTo(&c.all) }

// moveTo moves all threads; those that start later inherit it.
func moveTo(set *unix.CPUSet) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	for _, t := range threads {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			if err := unix.SchedSetaffinity(tid, set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("move thread to other cores: %w", err)
			}
		}
	}
	return nil
}

// raiseDescriptors sets the limit that the processes we start inherit, as far as we
// may, and returns it.
func raiseDescriptors() (int, error) {
	want := syscall.Rlimit{Cur: descriptors, Max: descriptors}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want); err == nil {
		return descriptors, nil
	}
	var have syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &have); err != nil {
		return 0, fmt.Errorf("ask for the limit of descriptors: %w", err)
	}
	have.Cur = have.Max // set by us, so that children get it (os/exec restores what Go itself has raised)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &have); err != nil {
		return 0, fmt.Errorf("raise the limit of descriptors: %w", err)
	}
	if have.Cur < 16384 {
		return 0, fmt.Errorf("raise the limit of descriptors: %d are too few, 16384 are needed", have.Cur)
	}
	return int(min(have.Cur, descriptors)), nil
}

// usage is processor time so far.
type usage struct {
	process time.Duration
	core    ticks
	machine ticks // all cores
}

// processTime returns the time of a process, of all its threads, those that have ended included
// (clock_getcpuclockid(3)).
func processTime(pid int) (time.Duration, error) {
	var ts unix.Timespec
	const schedClock = 2 // CPUCLOCK_SCHED in the kernel's posix-timers_types.h
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// A process has settled when it has used a fiftieth of settleWindow at the most.
const (
	settleWindow = 50 * time.Millisecond
	settleMost   = 100 // windows
)

// settle waits until a process, unless it is 0, has done what is left to do after it begins to serve: that is not what
// is measured, and in 1.5 s it is up to 1 % of what a core can do.
func (l *lab) settle(ctx context.Context, pid int) error {
	if pid == 0 {
		return nil
	}
	before, err := processTime(pid)
	for range settleMost {
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settleWindow):
		}
		var now time.Duration
		if now, err = processTime(pid); err == nil && now-before <= settleWindow/50 {
			return nil
		}
		before = now
	}
	l.remark("the process is not idle %v after its start", settleMost*settleWindow)
	return err
}

// measureUsage returns the time of a process, 0 if there is none, and of a core.
func measureUsage(pid, core int) (u usage, err error) {
	if pid > 0 {
		if u.process, err = processTime(pid); err != nil {
			return u, err
		}
	}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, fmt.Errorf("read processor time: %w", err)
	}
	if u.core, err = parseStat(string(text), "cpu"+strconv.Itoa(core)); err == nil {
		u.machine, err = parseStat(string(text), "cpu")
	}
	return u, err
}

func (u usage) minus(v usage) usage {
	return usage{process: u.process - v.process, core: u.core.minus(v.core), machine: u.machine.minus(v.machine)}
}

// tick is the kernel's unit of /proc/stat: USER_HZ is 100 on every architecture that
// Go knows.
const tick = 10 * time.Millisecond

func (u usage) coreTime() time.Duration { return time.Duration(u.core.busy) * tick }

func (u usage) machineTime() time.Duration { return time.Duration(u.machine.busy) * tick }

func allCores() (ticks, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}, fmt.Errorf("read processor time: %w", err)
	}
	return parseStat(string(text), "cpu")
}

// Limits of an idle machine, as shares of all cores' time.
const (
	maxBusy   = 0.04
	maxStolen = 0.02
)

var errBusy = errors.New("the machine is not idle, and figures would be of everything on it; wait, or measure " +
	"nevertheless by -force")

// idlePatience is how long a machine may take to become idle, before each round.
const idlePatience = 2 * time.Minute

// checkIdle waits for the machine to be idle, or only looks if force is set, and
// returns the share of time that its cores were busy. Load averages are of no use:
// they remember what has ended.
func checkIdle(ctx context.Context, force bool, progress io.Writer) (busy float64, err error) {
	reported := false
	for deadline := time.Now().Add(idlePatience); ; {
		before, err := allCores()
		if err != nil {
			return 0, err
		}
		select {
		case <-time.After(time.Second): // what is measured is time that passes
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		after, err := allCores()
		if err != nil {
			return 0, err
		}
		d := after.minus(before)
		busy, stolen := d.share(d.busy), d.share(d.stolen)
		if force || busy <= maxBusy && stolen <= maxStolen {
			return busy, nil
		}
		if !reported {
			reported = true
			fmt.Fprintf(progress, "waiting for up to %v: the machine is %.0f %% busy\n", idlePatience, busy*100)
		}
		if time.Now().After(deadline) {
			return busy, fmt.Errorf("check machine: %.0f %% busy, %.0f %% stolen: %w", busy*100, stolen*100, errBusy)
		}
	}
}

// describeMachine returns what is known about the machine.
func describeMachine(c cores) report.Machine {
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			return "" // left out of the report
		}
		return strings.TrimSpace(string(b))
	}
	cpuinfo := read("/proc/cpuinfo")
	m := report.Machine{
		CPU: field(cpuinfo, "model name"), CPUs: len(c.load) + 1, Kernel: read("/proc/sys/kernel/osrelease"),
		Go: runtime.Version(), Proxy: strconv.Itoa(c.proxy), Load: c.loadList(),
	}
	if m.CPU == "" {
		m.CPU = "unknown processor"
	}
	if inVM() {
		m.CPU += ", in the virtual machine of bench/vm"
	}
	if kb, _, ok := strings.Cut(field(read("/proc/meminfo"), "MemTotal"), " "); ok {
		if n, err := strconv.Atoi(kb); err == nil {
			m.MemoryMB = n / 1024
		}
	}
	return m
}
