package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/bench/testbed"
)

// countedCalls are the system calls that a proxy makes, and of which perf can hold
// open a counter for each thread.
var countedCalls = strings.Fields(`accept accept4 epoll_wait epoll_pwait epoll_ctl socket connect bind close shutdown
	getsockopt setsockopt getsockname getpeername recvfrom sendto recvmsg sendmsg recvmmsg sendmmsg
	read write readv writev splice pipe2 fcntl ioctl futex timerfd_settime nanosleep sched_yield madvise`)

// allCalls counts every system call, those that are not listed included.
const allCalls = "raw_syscalls:sys_enter"

// counter counts a process's system calls by perf-stat(1), only between on and off:
// perf reads orders from one pipe and answers by another.
type counter struct {
	perf    *testbed.Process
	file    string
	control *os.File
	answers *bufio.Reader
	close   func()
}

// newCounter attaches to a process. It returns nil where there is nothing to count.
func (l *lab) newCounter(ctx context.Context, pid int) (c *counter, err error) {
	if !l.counting || pid == 0 {
		return nil, nil
	}
	events := []string{allCalls}
	for _, name := range countedCalls {
		events = append(events, "syscalls:sys_enter_"+name)
	}
	c = &counter{file: filepath.Join(l.dir, "perf.csv")}
	controlIn, controlOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answerIn, answerOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, controlIn.Close(), controlOut.Close())
	}
	c.control, c.answers = controlOut, bufio.NewReader(answerIn)
	c.close = func() { controlOut.Close(); answerIn.Close() }
	perf := command(ctx, l.tb.Node, l.cores.loadList(), "perf", "stat", "-x,", "-o", c.file, "-D", "-1",
		"--control", "fd:3,4", "-e", strings.Join(events, ","), "-p", strconv.Itoa(pid))
	perf.ExtraFiles = []*os.File{controlIn, answerOut}
	c.perf, err = perf.Launch()
	controlIn.Close()
	answerOut.Close()
	if err == nil {
		err = c.order("enable")
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("count system calls: %w", err)
	}
	return c, nil
}

// order sends perf an order and waits until it is done.
func (c *counter) order(what string) error {
	if _, err := c.control.WriteString(what + "\n"); err != nil {
		return err
	}
	if answer, err := c.answers.ReadString('\n'); err != nil {
		c.perf.Stop(syscall.SIGKILL)
		return fmt.Errorf("order perf to %s: it answered %q: %w: %s", what, answer, err, c.perf.Log.String())
	}
	return nil
}

// off ends counting and returns the calls per operation. A nil counter has none.
func (c *counter) off() (counts map[string]float64, err error) {
	if c == nil {
		return nil, nil
	}
	defer c.close()
	err = c.order("disable")
	c.perf.Stop(syscall.SIGINT)
	text, readErr := os.ReadFile(c.file)
	if err = errors.Join(err, readErr); err != nil {
		return nil, fmt.Errorf("count system calls: %w", err)
	}
	return parsePerf(string(text))
}

// callFigures returns the calls per operation.
func callFigures(counts map[string]float64, operations float64) []figure {
	var out []figure
	if total, ok := counts[allCalls]; ok {
		out = append(out, figure{report.Calls, "", total / operations})
	}
	for _, name := range countedCalls {
		if n := counts["syscalls:sys_enter_"+name] / operations; n >= 0.001 {
			out = append(out, figure{report.CallPrefix + name, "", n})
		}
	}
	return out
}
