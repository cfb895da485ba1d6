package testbed

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// starter starts processes, all from one thread that does nothing else. That
// thread lends them its network namespace, and its end is their end: the signal
// that a process asks for with PR_SET_PDEATHSIG comes when the thread, not the
// program, that started it dies (prctl(2)). A thread of Go's pool would not do,
// since it may end at any time, with a goroutine that was locked to it.
type starter struct {
	jobs chan job
	stop chan struct{}
	done chan struct{}
}

type job struct {
	cmd    *Cmd
	result chan error
}

func newStarter() *starter {
	s := &starter{jobs: make(chan job), stop: make(chan struct{}), done: make(chan struct{})}
	go onOwnThread(s.run)
	return s
}

// onOwnThread runs f on a thread that is destroyed afterwards, never the main
// one: that one is not destroyed, and its namespace is what /proc/PID/net shows.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return // locked: the thread ends with its goroutine
	}
	// This goroutine holds the main thread until f is done, so the next gets another.
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

func (s *starter) run() {
	defer close(s.done)
	for {
		select {
		case j := <-s.jobs:
			j.result <- startHere(j.cmd)
		case <-s.stop:
			return
		}
	}
}

// startHere moves the thread to the command's host, for good, and starts it.
func startHere(c *Cmd) error {
	if err := c.host.ns.set(); err != nil {
		return err
	}
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return c.Cmd.Start()
}

func (s *starter) start(c *Cmd) error {
	j := job{c, make(chan error, 1)}
	select {
	case s.jobs <- j:
		return <-j.result
	case <-s.done:
		return os.ErrClosed
	}
}

// close returns when no more process can be started; those that run are killed.
func (s *starter) close() {
	close(s.stop)
	<-s.done
}
