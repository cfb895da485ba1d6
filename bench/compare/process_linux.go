package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/testbed"
)

// patience is how long anything may take that should be done soon.
const patience = 20 * time.Second

// process is a program on a host of the lab.
type process struct {
	cmd   *testbed.Cmd
	ended chan struct{}
	err   error // valid after ended
	log   tail
}

// tail keeps the last of what a program says.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - 4096; over > 0 {
		t.b = t.b[over:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.b))
}

// command makes a process that will run on some cores only. taskset(1) becomes the
// program, so that the runtime of that sees the cores from its start.
func command(ctx context.Context, host *testbed.Host, cores, name string, args ...string) *process {
	p := &process{cmd: host.Command(ctx, "taskset", append([]string{"-c", cores, name}, args...)...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	return p
}

func (p *process) start() error {
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() { // ends with the process, which stop waits for
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return nil
}

// stop ends the process and waits for it. It may be called more than once.
func (p *process) stop(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig) // fails only if it has ended
	select {
	case <-p.ended:
		return
	case <-time.After(patience):
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// wait waits for a process that ends by itself.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.stop(syscall.SIGKILL)
		return ctx.Err()
	}
	if p.err != nil {
		return fmt.Errorf("%w: %s", p.err, p.log.String())
	}
	return nil
}

// until polls what no event tells of.
func until(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !is() {
		select {
		case <-time.After(2 * time.Millisecond): // a pause between two looks
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
	return nil
}

// client is a running load.RoleAsk.
type client struct {
	*process
	in  io.WriteCloser
	out *bufio.Reader
}

// ask starts a client on the client host and returns when its time to measure begins.
func (l *lab) ask(ctx context.Context, c load.AskConfig) (*client, error) {
	p := command(ctx, l.tb.Client, l.cores.loadList(), l.self, load.Args(load.RoleAsk, c)...)
	p.cmd.Stdout = nil
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// A pipe of our own: that of StdoutPipe is closed by Wait, perhaps before its end is read.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout = w
	err = p.start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	k := &client{process: p, in: in, out: bufio.NewReader(r)}
	context.AfterFunc(ctx, func() { r.Close() }) // ctx ends with the run
	line, err := k.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != load.Begin {
		p.stop(syscall.SIGKILL)
		return nil, errors.Join(fmt.Errorf("start load: said %q: %s", line, p.log.String()), err)
	}
	return k, nil
}

// result waits for what the client has seen.
func (k *client) result() (r load.Result, err error) {
	if err := json.NewDecoder(k.out).Decode(&r); err != nil {
		k.stop(syscall.SIGKILL)
		return r, fmt.Errorf("read load's result: %w: %s", err, k.log.String())
	}
	return r, nil
}
