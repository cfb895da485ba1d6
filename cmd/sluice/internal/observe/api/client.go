package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	// timeout is how long the process may take for an answer, and mostBytes how long that may be.
	timeout   = 10 * time.Second
	mostBytes = 64 << 20

	// patience is how long a process may take to come that takes over: until it listens, its predecessor's socket is
	// there and refuses.
	patience = time.Second
	retry    = 50 * time.Millisecond
)

// Client asks the process whose socket is at Socket.
type Client struct {
	Socket string
	http   *http.Client
}

// NewClient returns a client.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{socket, &http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: dial,
		DisableCompression: true, MaxIdleConns: 1, IdleConnTimeout: time.Second}}}
}

// Get asks for a resource. It asks once more where the process has handed over meanwhile.
func (c *Client) Get(ctx context.Context, resource string, q url.Values, answer any) error {
	return c.Do(ctx, http.MethodGet, resource, q, answer)
}

// Do is Get by any method of HTTP.
func (c *Client) Do(ctx context.Context, method, resource string, q url.Values, answer any) error {
	u := url.URL{Scheme: "http", Host: "sluice", Path: "/" + Version + "/" + resource, RawQuery: q.Encode()}
	var until time.Time // since the first failure: a request may have waited for long before
	for {
		err := c.do(ctx, method, u.String(), answer)
		again := cutOff(err) || errors.Is(err, io.EOF)
		if until.IsZero() {
			until = time.Now().Add(patience)
		}
		if !again || !time.Now().Before(until) {
			return c.explain(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
		}
	}
}

func (c *Client) do(ctx context.Context, method, address string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, mostBytes))
	if resp.StatusCode != http.StatusOK {
		failure := new(Error)
		if err := body.Decode(failure); err != nil || failure.Message == "" {
			return fmt.Errorf("read the answer: %s", resp.Status)
		}
		return failure
	}
	if err := body.Decode(answer); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// ErrNotRunning means that no process answers at the socket.
var ErrNotRunning = errors.New("no running Sluice answers")

// cutOff reports whether the process has ended, or does so just now.
func cutOff(err error) bool {
	// net/http has no other name for a connection that ends between two requests, or before the first.
	const idle = "server closed idle connection"
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || err != nil && strings.Contains(err.Error(), idle)
}

// explain says what is to be done about an error.
func (c *Client) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w at %s, since there is no such socket: is it running on this node? Give the --api-socket "+
			"that it has, or api.sock in the folder of its --handover-socket", ErrNotRunning, c.Socket)
	case cutOff(err):
		return fmt.Errorf("%w at %s, whose process has ended: is it running on this node?", ErrNotRunning, c.Socket)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, io.EOF): // the socket cannot be opened, or is closed at once
		return fmt.Errorf("ask Sluice at %s: permission denied: run as root, or as the user of the running process",
			c.Socket)
	}
	if failure, ok := errors.AsType[*Error](err); ok {
		return failure
	}
	return fmt.Errorf("ask Sluice at %s: %w", c.Socket, err)
}

// All asks for every page of a list. It begins anew where another process has taken over meanwhile.
func All[T any](ctx context.Context, c *Client, resource string, q url.Values) (all []T, err error) {
	const tries = 5
	for range tries {
		all = []T{}
		err = Each(ctx, c, resource, q, func(page []T) error {
			all = append(all, page...)
			return nil
		})
		if failure, ok := errors.AsType[*Error](err); !ok || failure.Code != http.StatusGone {
			break
		}
		q.Del("continue")
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Each asks for one page of a list after the other, and passes them to visit.
func Each[T any](ctx context.Context, c *Client, resource string, q url.Values, visit func([]T) error) error {
	if q == nil {
		q = make(url.Values)
	}
	for {
		var page List[T]
		if err := c.Get(ctx, resource, q, &page); err != nil {
			return err
		}
		if err := visit(page.Items); err != nil || page.Continue == "" {
			return err
		}
		q.Set("continue", page.Continue)
	}
}
