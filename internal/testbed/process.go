package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a program that runs on a [Host]. Its methods may be called concurrently.
type Process struct {
	Log *Buffer // what it writes, unless its command has outputs of its own

	cmd  *Cmd
	done chan struct{}
	err  error // of Wait; valid when done is closed
}

// Launch starts the command and waits for its end in a goroutine of its own: the caller
// calls neither Start nor Wait. Stop the process before its Testbed is closed.
func (c *Cmd) Launch() (*Process, error) {
	p := &Process{Log: new(Buffer), cmd: c, done: make(chan struct{})}
	if c.Stdout == nil {
		c.Stdout = p.Log
	}
	if c.Stderr == nil {
		c.Stderr = p.Log
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = c.Wait()
		close(p.done)
	}()
	return p, nil
}

// Pid returns the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended and its output is read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Signal sends a signal. One to a process that has ended is ignored.
func (p *Process) Signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Wait waits for the process to end by itself and returns its error, with the end of the
// log, or that of ctx.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", p.cmd.Path, ctx.Err())
	}
	if p.err != nil {
		log := p.Log.String()
		return fmt.Errorf("%s: %w: %s", p.cmd.Path, p.err, log[max(0, len(log)-4096):])
	}
	return nil
}

// Stop sends a signal, waits for the end, and returns the exit code, -1 for an end by a
// signal. A process that has not ended after [Patience] is killed. It may be called more
// than once.
func (p *Process) Stop(s os.Signal) (code int) {
	p.Signal(s)
	select {
	case <-p.done:
	case <-time.After(Patience):
		p.Signal(syscall.SIGKILL)
		<-p.done
	}
	return p.cmd.ProcessState.ExitCode()
}

// Healthy waits until the process answers at a URL, asked from its own host, with status
// 200. It fails if the process ends before, or when [Patience] is over.
func (p *Process) Healthy(ctx context.Context, url string) error {
	return Poll(ctx, Patience, p.cmd.Path+" to be healthy", func() (bool, error) {
		if p.Ended() {
			return false, fmt.Errorf("it has ended: %v", p.cmd.ProcessState)
		}
		asked, cancel := context.WithTimeout(ctx, Patience)
		defer cancel()
		code, _, err := p.cmd.host.Get(asked, url)
		return err == nil && code == http.StatusOK, nil
	})
}

// ExitCode returns the code that a command ended with, 0 if err is not of that.
func ExitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}
