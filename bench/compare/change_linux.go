package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
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

	// askSlack is how long after the one before a client may begin. Where none did for longer,
	// this program was paused, and it is unknown when the change took effect.
	askSlack = 5 * time.Millisecond

	// agreeing is how many clients in a row must see a change for it to be in effect.
	agreeing = 20
)

// errPaused says that a change has been in effect for up to askSlack, or longer, before a
// client asked.
var errPaused = errors.New("the clients were paused")

// changes changes, removes and adds one Service, many times. It returns how long each
// took in ms until clients see it, and what the program itself has measured of all. Those of which
// that is not known are made once more, again of them.
// Nothing is scraped in between: a scrape of ten thousand Services is more work than a
// change, and would be measured in its place.
func (s *scaled) changes(ctx context.Context, rounds int) (whole []float64, again int, inside syncs, err error) {
	before, err := s.synced(ctx)
	if err != nil {
		return nil, 0, syncs{}, err
	}
	var unknown []float64 // at the most
	for round := 0; len(whole) < 3*rounds && round < 2*rounds; round++ {
		pod := s.tb.Pods[1+round%2]
		for _, step := range []struct {
			content string
			seen    func(name string, err error) bool
		}{
			{s.manifest(0, whoPort, pod), func(name string, err error) bool { return err == nil && name == pod.Name }},
			{"", func(_ string, err error) bool { return err != nil }},
			{s.manifest(0, whoPort, s.tb.Pods[0]), func(name string, err error) bool {
				return err == nil &&
					name == s.tb.Pods[0].Name
			}},
		} {
			if err := s.flushClients(ctx); err != nil {
				return nil, 0, syncs{}, err
			}
			select {
			case <-time.After(restFor):
			case <-ctx.Done():
				return nil, 0, syncs{}, ctx.Err()
			}
			switch took, err := s.change(ctx, step.content, step.seen); {
			case errors.Is(err, errPaused):
				unknown = append(unknown, ms(took))
			case err != nil:
				return nil, 0, syncs{}, fmt.Errorf("change %d: %w", round, err)
			default:
				whole = append(whole, ms(took))
			}
		}
	}
	if missing := 3*rounds - len(whole); missing > 0 {
		whole = append(whole, unknown[:min(missing, len(unknown))]...)
	}
	// The last change is in effect before the program has counted it. On a machine so busy
	// that clients are not answered for askLimit two may have been read as one.
	var failed error
	err = until(ctx, "the metric of the last change", func() bool {
		var after syncs
		after, failed = s.synced(ctx)
		if failed != nil {
			return true
		}
		last := inside.count
		inside = syncs{after.count - before.count, after.seconds - before.seconds}
		return inside.count > 0 && inside.count == last
	})
	return whole, len(unknown), inside, errors.Join(err, failed)
}

// flushClients deletes the conntrack entries of clients that asked while there was no Service: the kernel
// has let their packets through as they were, and for two minutes does the same to any client that
// uses a port of theirs (nf_conntrack_tcp_timeout_syn_sent). A client's ports repeat
// sooner here, where thousands ask.
func (s *scaled) flushClients(ctx context.Context) error {
	if s.protocol != "TCP" {
		return nil
	}
	return s.onNode(ctx, "", "conntrack", "-F")
}

// change replaces the file of Service 0 and returns the time from then until the first
// client started from which on all see the change. One starts every askEvery,
// whatever has become of those before. With errPaused it may have taken less.
func (s *scaled) change(ctx context.Context, content string, seen func(string, error) bool) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, testbed.Patience)
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
	open := 0
	replace, err := s.prepare("one.yaml", content)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	all := row{start: start}
	if err := replace(); err != nil {
		return 0, err
	}
	for {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for clients that see it: %w", ctx.Err())
		case a := <-answers:
			open--
			if started, ok := all.note(a.client, a.sees); ok {
				if all.gap() > askSlack {
					return started.Sub(start), errPaused
				}
				return started.Sub(start), nil
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

// row is the clients of one change, in the order in which they started.
type row struct {
	start   time.Time // of the change
	started []time.Time
	sees    []sight
	from    int // after the last that is known not to see the change
}

// sight is what one client sees. Its zero value is that it is not known yet.
type sight uint8

const (
	old sight = iota + 1
	changed
)

// begin adds a client.
func (r *row) begin(now time.Time) int {
	r.started, r.sees = append(r.started, now), append(r.sees, 0)
	return len(r.started) - 1
}

// gap returns how long no client had started before the first from which on all see the change:
// that is as finely as it is known when it took effect.
func (r *row) gap() time.Duration {
	if r.from == 0 {
		return r.started[0].Sub(r.start)
	}
	return r.started[r.from].Sub(r.started[r.from-1])
}

// note notes what a client sees, and returns when the first was started from which on
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
	return r.started[r.from], true
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
	// The end of the change ends the wait for an answer, too.
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

// syncs are how many changes the program has applied, and how long that took in all.
type syncs struct{ count, seconds float64 }

// synced reads them from the program's metrics.
func (s *scaled) synced(ctx context.Context) (all syncs, err error) {
	text, err := s.get(ctx, testbed.MetricsURL)
	if err != nil {
		return syncs{}, err
	}
	const name, labels = "kubeproxy_sync_proxy_rules_duration_seconds", `{ip_family="IPv4"}`
	count, counted := testbed.Series(text, name+"_count"+labels)
	seconds, summed := testbed.Series(text, name+"_sum"+labels)
	if !counted || !summed {
		return syncs{}, fmt.Errorf("read metrics: no histogram %s", name)
	}
	return syncs{count, seconds}, nil
}
