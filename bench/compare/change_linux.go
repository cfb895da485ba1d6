package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	// changesOf is how many times in a round a Service is changed, removed and added.
	changesOf = 50

	// restFor is how long nothing is asked between two changes, so that each is
	// measured alone and no two are read together (the manifests' quiet time is 10 ms).
	restFor = 30 * time.Millisecond

	// askEvery is the time from one client to the next, and so how finely a change is
	// seen.
	askEvery = 500 * time.Microsecond

	// askLimit is how long a client waits before it takes silence for the answer. It is
	// far above what a busy proxy may take: to be slow is not to be gone.
	askLimit = 100 * time.Millisecond

	// askAtOnce is how many clients there are at a time, at the most: all that fit into
	// askLimit, and some.
	askAtOnce = 256

	// agreeing is how many clients in a row must see a change for it to be in force.
	agreeing = 20
)

// changes changes, removes and adds one Service, many times. It returns how long each
// took in ms until clients see it, and what the program itself has measured of all.
// Nothing is scraped in between: a scrape of ten thousand Services is more work than a
// change, and would be measured in its place.
func (s *scaled) changes(ctx context.Context) (whole []float64, inside histogram, err error) {
	before, err := s.synced(ctx)
	if err != nil {
		return nil, histogram{}, err
	}
	for round := range changesOf {
		pod := s.tb.Pods[1+round%2]
		for _, step := range []struct {
			content string
			seen    func(name string, err error) bool
		}{
			{s.manifest(0, whoPort, pod), func(name string, err error) bool { return err == nil && name == pod.Name }},
			{"", func(_ string, err error) bool { return err != nil }},
			{s.manifest(0, whoPort, s.tb.Pods[0]), func(name string, err error) bool { return err == nil && name == s.tb.Pods[0].Name }},
		} {
			if err := s.forgetClients(ctx); err != nil {
				return nil, histogram{}, err
			}
			select {
			case <-time.After(restFor):
			case <-ctx.Done():
				return nil, histogram{}, ctx.Err()
			}
			took, err := s.change(ctx, step.content, step.seen)
			if err != nil {
				return nil, histogram{}, fmt.Errorf("change %d: %w", round, err)
			}
			whole = append(whole, ms(took))
		}
	}
	// The last change is in force before the program has counted it. On a machine so busy
	// that clients are not answered for askLimit two may have been read as one.
	var failed error
	err = until(ctx, "the metric of the last change", func() bool {
		var after histogram
		after, failed = s.synced(ctx)
		if failed != nil {
			return true
		}
		last := inside.count()
		inside = after.since(before)
		return inside.count() > 0 && inside.count() == last
	})
	return whole, inside, errors.Join(err, failed)
}

// forgetClients has the node forget those who asked while there was no Service: the kernel
// has let their packets through as they were, and for two minutes does the same to whoever
// comes from a port of theirs (nf_conntrack_tcp_timeout_syn_sent). A client's ports repeat
// sooner here, where thousands ask.
func (s *scaled) forgetClients(ctx context.Context) error {
	if s.protocol != "TCP" {
		return nil
	}
	return s.onNode(ctx, "", "conntrack", "-F")
}

// change replaces the file of Service 0 and returns the time from then until the first
// client was begun from which on all see the change. One is begun every askEvery,
// whatever has become of those before.
func (s *scaled) change(ctx context.Context, content string, seen func(string, error) bool) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	type answer struct {
		client int
		sees   bool
	}
	answers := make(chan answer, askAtOnce)
	next := time.NewTicker(askEvery)
	defer next.Stop()
	var all row
	open := 0
	start := time.Now()
	if err := s.write("one.yaml", content); err != nil {
		return 0, err
	}
	for {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for clients that see it: %w", ctx.Err())
		case a := <-answers:
			open--
			if begun, ok := all.note(a.client, a.sees); ok {
				return begun.Sub(start), nil
			}
		case <-next.C:
			if open == askAtOnce {
				continue
			}
			open++
			client := all.begin(time.Now())
			clients.Go(func() {
				name, err := s.who(ctx, askLimit)
				answers <- answer{client, seen(name, err)}
			})
		}
	}
}

// row is the clients of one change, in the order in which they were begun.
type row struct {
	begun []time.Time
	sees  []sight
	from  int // after the last that is known not to see the change
}

// sight is what one client sees. Its zero value is that it is not known yet.
type sight uint8

const (
	old sight = iota + 1
	changed
)

// begin adds a client.
func (r *row) begin(now time.Time) int {
	r.begun, r.sees = append(r.begun, now), append(r.sees, 0)
	return len(r.begun) - 1
}

// note notes what a client sees, and returns when the first was begun from which on
// agreeing clients see the change, if it is known that they do.
func (r *row) note(client int, sees bool) (time.Time, bool) {
	if sees {
		r.sees[client] = changed
	} else {
		r.sees[client] = old
		r.from = max(r.from, client+1)
	}
	if r.from+agreeing > len(r.sees) {
		return time.Time{}, false
	}
	for _, v := range r.sees[r.from : r.from+agreeing] {
		if v != changed {
			return time.Time{}, false
		}
	}
	return r.begun[r.from], true
}

// who asks Service 0 who answers. What takes longer than limit is taken for silence.
func (s *scaled) who(ctx context.Context, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := s.tb.Client.Dial(ctx, strings.ToLower(s.protocol), net.JoinHostPort(clusterIP(0), "80"))
	if err != nil {
		return "", err
	}
	defer c.Close()
	// Whoever ends the change early ends the wait for an answer, too.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if s.protocol == "UDP" {
		if _, err := c.Write([]byte("?")); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	return strings.TrimSpace(string(buf[:n])), err
}

// synced returns how long changes took to be brought into force.
func (s *scaled) synced(ctx context.Context) (histogram, error) {
	text, err := s.get(ctx, "http://127.0.0.1:10249/metrics")
	if err != nil {
		return histogram{}, err
	}
	return parseHistogram(text, "kubeproxy_sync_proxy_rules_duration_seconds", `ip_family="IPv4"`, 1000)
}
