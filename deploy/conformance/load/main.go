// Load sends HTTP requests to a URL at a steady rate, each on a new connection. It also holds connections, on each of
// which it sends a request every second. It tells on stderr what fails. On SIGTERM it prints what happened as JSON:
//
//	load [-rate 100] [-hold 50] URL
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
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
	said     atomic.Int32
}

func main() {
	rate := flag.Int("rate", 100, "requests per second")
	hold := flag.Int("hold", 50, "connections that stay open, with one request per second each")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	at, err := url.Parse(flag.Arg(0))
	if err != nil || at.Host == "" {
		fmt.Fprintf(os.Stderr, "load: %q is no URL\n", flag.Arg(0))
		os.Exit(2)
	}
	r := run(ctx, at, *rate, *hold)
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		os.Exit(1)
	}
}

func run(ctx context.Context, at *url.URL, rate, hold int) *result {
	r := &result{Held: hold, Errors: map[string]int{}}
	var wg sync.WaitGroup
	for range hold {
		wg.Go(func() { r.hold(ctx, at) })
	}
	// A connection for each request.
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: dialer.DialContext,
	}}
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
				err := get(client, at.String())
				r.note(time.Since(begin), err)
			})
		}
	}
}

// hold keeps one connection and counts each time that it has to dial another one.
func (r *result) hold(ctx context.Context, at *url.URL) {
	address := net.JoinHostPort(at.Hostname(), cmp.Or(at.Port(), "80"))
	var c net.Conn
	var answers *bufio.Reader
	ask := func() (err error) {
		if c == nil {
			if c, err = net.DialTimeout("tcp", address, 5*time.Second); err != nil {
				return err
			}
			answers = bufio.NewReader(c)
		}
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", at.RequestURI(), at.Host); err != nil {
			return err
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			return err
		}
		return drain(response)
	}
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for {
		if err := ask(); err != nil {
			r.say("a held connection ends", err)
			if c != nil {
				_ = c.Close()
			}
			c = nil
			r.mu.Lock()
			r.Cut++
			r.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			if c != nil {
				_ = c.Close()
			}
			return
		case <-ticks.C:
		}
	}
}

// say prints when something failed, for the first ones.
func (r *result) say(what string, err error) {
	if r.said.Add(1) <= 100 {
		fmt.Fprintf(os.Stderr, "%s: %s: %v\n", time.Now().UTC().Format(time.TimeOnly+".000"), what, err)
	}
}

// note counts one request of a connection of its own.
func (r *result) note(took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Requests++
	r.Slowest = max(r.Slowest, took.Milliseconds())
	if err != nil {
		r.say("a request fails", err)
		r.Failed++
		r.Errors[kind(err)]++
	}
}

func get(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	return drain(response)
}

// drain reads an answer to its end.
func drain(response *http.Response) error {
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
