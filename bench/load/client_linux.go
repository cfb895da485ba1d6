package load

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

	"github.com/sluice-lb/sluice/internal/testbed"
)

// Client is a running [RoleAsk]. The caller stops it.
type Client struct {
	*testbed.Process
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts a client and returns when its time to measure begins. The command is one of a program that calls
// [Main], with [Args]; its input and output are the client's. The end of ctx ends the wait for what it says.
func Start(ctx context.Context, cmd *testbed.Cmd) (*Client, error) {
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
	k := &Client{Process: p, in: in, out: bufio.NewReader(r)}
	context.AfterFunc(ctx, func() { r.Close() }) // ctx ends with the run
	line, err := k.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != Begin {
		p.Stop(syscall.SIGKILL)
		return nil, errors.Join(fmt.Errorf("start load: it wrote %q: %s", line, p.Log.String()), err)
	}
	return k, nil
}

// End tells a client of kind [Idle], or without a duration, to end.
func (k *Client) End() { k.in.Close() }

// Result waits for what the client has seen.
func (k *Client) Result() (r Result, err error) {
	if err := json.NewDecoder(k.out).Decode(&r); err != nil {
		k.Stop(syscall.SIGKILL)
		return r, fmt.Errorf("read load's result: %w: %s", err, k.Log.String())
	}
	return r, nil
}
