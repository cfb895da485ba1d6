// Load sends HTTP requests to a URL at a steady rate, each on a new connection. It also holds connections, on each of
// which it sends a request every second. On SIGTERM it prints what happened as JSON:
//
//	load [-rate 100] [-hold 50] URL
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// result is what the program prints. The times are milliseconds.
type result struct {
	Requests int            `json:"requests"`
	Failed   int            `json:"failed"`
	Slowest  int64          `json:"slowest"`
	Held     int            `json:"held"`
	Cut      int            `json:"cut"` // held connections that ended before the client wanted it
	Errors   map[string]int `json:"errors"`
	mu       sync.Mutex
}

func main() {
	rate := flag.Int("rate", 100, "requests per second")
	hold := flag.Int("hold", 50, "connections that stay open, with one request per second each")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	r := run(ctx, flag.Arg(0), *rate, *hold)
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		os.Exit(1)
	}
}

func run(ctx context.Context, url string, rate, hold int) *result {
	r := &result{Held: hold, Errors: map[string]int{}}
	var wg sync.WaitGroup
	for range hold {
		wg.Go(func() { r.hold(ctx, url) })
	}
	client := newClient(true, nil)
	ticks := time.NewTicker(time.Second / time.Duration(rate))
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			return r
		case <-ticks.C:
			wg.Go(func() {
				begin := time.Now()
				err := get(client, url)
				r.note(time.Since(begin), err)
			})
		}
	}
}

// hold keeps one connection and counts each time that it has to dial another one.
func (r *result) hold(ctx context.Context, url string) {
	dials := 0
	client := newClient(false, func() { dials++ })
	defer client.CloseIdleConnections()
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for {
		before := dials
		err := get(client, url)
		r.mu.Lock()
		if err != nil || before > 0 && dials > before {
			r.Cut++
		}
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// note counts one request of a connection of its own.
func (r *result) note(took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Requests++
	r.Slowest = max(r.Slowest, took.Milliseconds())
	if err != nil {
		r.Failed++
		r.Errors[kind(err)]++
	}
}

// newClient returns a client with a connection of its own for each request, or with kept ones.
func newClient(short bool, dialed func()) *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: short,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if dialed != nil {
				dialed()
			}
			return dialer.DialContext(ctx, network, address)
		},
	}}
}

func get(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return nil
}

// kind shortens an error to what has no address in it.
func kind(err error) string {
	for _, k := range []string{"refused", "reset", "no route", "i/o timeout", "Timeout exceeded", "EOF",
		"broken pipe", "status"} {
		if strings.Contains(err.Error(), k) {
			return k
		}
	}
	return err.Error()
}
