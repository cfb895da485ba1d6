package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/testbed"
)

// command returns a process that will run on some cores only, or on all for "". taskset(1)
// becomes the program, so that the runtime of that sees the cores from its start.
func command(ctx context.Context, host *testbed.Host, cores, name string, args ...string) *testbed.Cmd {
	if cores == "" {
		return host.Command(ctx, name, args...)
	}
	return host.Command(ctx, "taskset", append([]string{"-c", cores, name}, args...)...)
}

// until polls for what no event reports.
func until(ctx context.Context, what string, is func() bool) error {
	return testbed.Poll(ctx, testbed.Patience, what, func() (bool, error) { return is(), nil })
}

// client is a running load.RoleAsk.
type client struct {
	*testbed.Process
	in  io.WriteCloser
	out *bufio.Reader
}

// ask starts a client on the client host and returns when its time to measure begins.
func (l *lab) ask(ctx context.Context, c load.AskConfig) (*client, error) {
	cmd := command(ctx, l.tb.Client, l.cores.loadList(), l.self, load.Args(load.RoleAsk, c)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// A pipe of our own: that of StdoutPipe is closed by Wait, perhaps before its end is read.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	p, err := cmd.Launch()
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	k := &client{Process: p, in: in, out: bufio.NewReader(r)}
	context.AfterFunc(ctx, func() { r.Close() }) // ctx ends with the run
	line, err := k.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != load.Begin {
		p.Stop(syscall.SIGKILL)
		return nil, errors.Join(fmt.Errorf("start load: it wrote %q: %s", line, p.Log.String()), err)
	}
	return k, nil
}

// result waits for what the client has seen.
func (k *client) result() (r load.Result, err error) {
	if err := json.NewDecoder(k.out).Decode(&r); err != nil {
		k.Stop(syscall.SIGKILL)
		return r, fmt.Errorf("read load's result: %w: %s", err, k.Log.String())
	}
	return r, nil
}
