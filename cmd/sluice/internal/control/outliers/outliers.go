package outliers

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"k8s.io/client-go/util/flowcontrol"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/proxyproto"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

const (
	maxTrials    = 64 // in flight
	turnEvery    = 100 * time.Millisecond
	turnTrials   = 10 // that begin in a turn
	trialTimeout = time.Second

	// maxNews is how many ejections and returns may wait to be reported, of which so many are at once, and then one
	// every 1/rate seconds. Those beyond are only counted.
	maxNews = 256
	burst   = 30
	rate    = 1.0
)

// Watcher is what has endpoints tried.
type Watcher struct {
	lb     *balancer.Balancer
	report func(lb.Ejection)
	limit  flowcontrol.RateLimiter
	news   chan lb.Ejection
	trials sync.WaitGroup
	flying chan struct{} // one for each trial in flight
}

// New returns a Watcher of a Balancer that has no table yet. report is called by Run, of not too many; changed with
// each service of which the ejections have changed, in any goroutine: it must not block.
func New(b *balancer.Balancer, changed func(lb.ID), report func(lb.Ejection)) *Watcher {
	w := &Watcher{lb: b, report: report, limit: flowcontrol.NewTokenBucketRateLimiter(rate, burst),
		news: make(chan lb.Ejection, maxNews), flying: make(chan struct{}, maxTrials)}
	b.OnEjection = func(e lb.Ejection) {
		changed(e.Service)
		select {
		case w.news <- e:
		default: // Run has enough to do, and asks for all that is due
		}
	}
	return w
}

// Run has trials made until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	defer w.trials.Wait()
	turn := time.NewTimer(0)
	defer turn.Stop()
	var at time.Time // of the next turn; zero: none is to come
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-w.news:
			if w.limit.TryAccept() {
				w.report(e)
			}
			if soon := time.Now().Add(turnEvery); at.IsZero() || soon.Before(at) {
				at = soon
				turn.Reset(turnEvery)
			}
		case now := <-turn.C:
			at = time.Time{}
			if wait := w.turn(ctx); wait > 0 {
				at = now.Add(wait)
				turn.Reset(wait)
			}
		}
	}
}

// turn judges what is due, begins the trials that are, and returns how long to wait for the next turn; 0: none is
// needed.
func (w *Watcher) turn(ctx context.Context) time.Duration {
	now := eventloop.Now()
	judge := w.lb.Health().JudgeShares(now)
	due, next := w.lb.Health().Trials(now, min(turnTrials, cap(w.flying)-len(w.flying)))
	for _, t := range due {
		w.flying <- struct{}{} // there is room: only this goroutine takes it
		w.trials.Go(func() {
			defer func() { <-w.flying }()
			try(ctx, t)
		})
	}
	if next == 0 || judge != 0 && judge < next {
		next = judge
	}
	if next == 0 {
		return 0
	}
	return max(turnEvery, time.Duration(next-now))
}

var errSelf = errors.New("connected to itself")

// try makes one trial.
func try(ctx context.Context, t balancer.Trial) {
	dialer := net.Dialer{Timeout: trialTimeout}
	c, err := dialer.DialContext(ctx, "tcp", t.Backend().String())
	if err == nil {
		if c.LocalAddr().String() == c.RemoteAddr().String() {
			err = errSelf // its port was the one that the kernel chose for us
		}
		_, _ = c.Write(proxyproto.AppendLocal(nil, proxyproto.Version(t.ProxyVersion()))) // it has answered already
		_ = c.Close()
	}
	switch {
	case err == nil:
		t.Passed(eventloop.Now())
	case ctx.Err() != nil || session.Shortage(err): // nothing was learnt
	default:
		t.Failed(eventloop.Now())
	}
}
