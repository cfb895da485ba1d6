package nfqueue

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// cores are where the goroutine of a queue runs. With fanout the queue has the packets of some cores, and to decide
// them there costs least: no other core is woken, and the caches have what is needed (bench/results/inside.md). But it
// leaves less time for the rest of what these cores do. So it runs there while most verdicts are all that there is to
// do (Verdict.Settled), and else where the kernel places it; and so it does for a part of the time where these cores
// are full of work, and for a while where they have no time for it, as when packets come faster than they take them.
type cores struct {
	own, all unix.CPUSet
	moves    bool      // there is a choice
	home     bool      // it runs on its own
	until    time.Time // when it moves
	score    int       // how many more verdicts were settled than not, within bounds

	full   bool      // its own are full of work, as was looked last
	looked time.Time // and when
	idle   int       // ticks that they had been idle then
	times  *idleTimes
}

const (
	// elsewhere is how long a queue that was behind does not run on its own cores. Where these are full of work it
	// stays for a time, and leaves them for another.
	elsewhere = time.Second
	stay      = 20 * time.Millisecond
	relief    = 2 * time.Millisecond

	// mostScore bounds the score; where it gets to a bound the queue moves.
	mostScore = 256

	// lookEvery is how often it is looked whether cores are full, which they are if they were idle for less than
	// leastIdle percent of that.
	lookEvery = 100 * time.Millisecond
	leastIdle = 15
	tick      = 10 * time.Millisecond // USER_HZ (time(7))

	// mostCores is how many a CPUSet has.
	mostCores = 1024
)

// coresOf returns those of the nth of some queues, of the cores that this process may use.
func coresOf(nth, queues int, times *idleTimes) (c cores, err error) {
	c.times = times
	if err := unix.SchedGetaffinity(0, &c.all); err != nil {
		return c, os.NewSyscallError("sched_getaffinity", err)
	}
	for i := range mostCores {
		if c.all.IsSet(i) && i%queues == nth {
			c.own.Set(i)
		}
	}
	c.moves = c.own.Count() > 0 && c.own != c.all
	return c, nil
}

// enter gives the calling goroutine a thread, until it ends.
func (c *cores) enter() {
	if c.moves {
		runtime.LockOSThread()
	}
}

// decided says how many verdicts were settled, and how many were not; behind: there may be more packets.
func (c *cores) decided(settled, others int, behind bool, now time.Time) {
	if now.Sub(c.looked) >= lookEvery {
		c.look(now)
	}
	if !c.moves {
		return
	}
	c.score = min(max(c.score+settled-others, -mostScore), mostScore)
	switch {
	case behind:
		c.until = now.Add(elsewhere)
		c.goTo(&c.all)
	case c.home && (c.score == -mostScore || c.full && now.After(c.until)):
		c.until = now.Add(relief)
		c.goTo(&c.all)
	case !c.home && c.score == mostScore && now.After(c.until):
		c.until = now.Add(stay)
		c.goTo(&c.own)
	}
}

func (c *cores) goTo(set *unix.CPUSet) {
	if home := *set == c.own; home != c.home && unix.SchedSetaffinity(0, set) == nil {
		c.home = home
	}
}

// look finds out whether the own cores are full of work.
func (c *cores) look(now time.Time) {
	idle := c.times.of(&c.own, now)
	d, cores := now.Sub(c.looked), time.Duration(c.own.Count())
	c.full = idle > 0 && !c.looked.IsZero() && time.Duration(idle-c.idle)*tick*100 < d*cores*leastIdle
	c.looked, c.idle = now, idle
}

// idleTimes has for how long each core was idle since the machine began, in ticks (proc_stat(5)). All queues have one.
type idleTimes struct {
	mu    sync.Mutex
	read  time.Time
	ticks [mostCores]int
}

// of returns the sum of those of some cores, as they were lookEvery ago at most; 0: it is not known.
func (i *idleTimes) of(set *unix.CPUSet, now time.Time) (ticks int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if now.Sub(i.read) >= lookEvery/2 {
		text, _ := os.ReadFile("/proc/stat")
		i.read = now
		i.parse(text)
	}
	for core, n := range i.ticks {
		if set.IsSet(core) {
			ticks += n
		}
	}
	return ticks
}

func (i *idleTimes) parse(stat []byte) {
	clear(i.ticks[:])
	for line := range bytes.Lines(stat) {
		rest, is := bytes.CutPrefix(line, []byte("cpu"))
		if !is {
			break
		}
		const idle = 4 // after the number of the core, user, nice and system
		fields := bytes.Fields(rest)
		if len(fields) <= idle || rest[0] == ' ' { // the first line is of all
			continue
		}
		if core, err := strconv.Atoi(string(fields[0])); err == nil && core < mostCores {
			i.ticks[core], _ = strconv.Atoi(string(fields[idle]))
		}
	}
}
