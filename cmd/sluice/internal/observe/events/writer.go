package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	// controller is who reports.
	controller = "sluice"

	// maxQueued is how many events may wait while the API server does not answer: as many as the rate limit lets pass
	// until the first is given up.
	maxQueued = burst + 20

	// A request is given up after requestTime, and all of them flushTime after the end of the program was asked for.
	requestTime = 10 * time.Second
	flushTime   = time.Second

	// What is counted ends when nothing alike has come for seriesEnd, and its count is written then, and every
	// seriesWrite until then. These are client-go's times; an API server forgets an Event an hour after it was written.
	seriesEnd   = 6 * time.Minute
	seriesWrite = 30 * time.Minute
	sweepEvery  = time.Minute

	// The API's limits, in bytes, of an Event's name, of which the time takes suffix, and of its reporting instance.
	maxName, suffix = 253, 17
	maxInstance     = 128
)

// pace is how a writer bears an API server that is away.
type pace struct {
	retry  time.Duration // until it tries again, and up to a quarter more, so that nodes do not do so together
	giveUp time.Duration // for which an event is tried
}

var usual = pace{retry: 10 * time.Second, giveUp: 2 * time.Minute}

// writer writes events to the API server, one after the other. It stands in place of client-go's tools/events, which
// brings clients of all of the API's 55 groups with it.
type writer struct {
	client  rest.Interface
	log     *zap.Logger
	pace    pace
	dropped *atomic.Uint64

	queue   chan *eventsv1.Event
	closing chan struct{}
	ended   chan struct{}
	ctx     context.Context // of requests
	cancel  context.CancelFunc

	// Of the goroutine.
	objects map[alike]*object
	pending []*object // are to be written, in this order; each once
	retry   *time.Timer
	away    bool   // until retry
	named   int64  // time in the name of the last object
	said    string // the last trouble, since one was written
}

// alike is what events have in common that one object counts.
type alike struct {
	regarding            corev1.ObjectReference
	reason, action, kind string
}

// object is an Event of the API server.
type object struct {
	event   *eventsv1.Event
	created bool
	due     time.Time // since when it is in pending; zero: it is not
	written time.Time // when it was last
	count   int32     // of its series, as it was written last
}

// seen returns when the last event was that o counts.
func (o *object) seen() time.Time {
	if o.event.Series != nil {
		return o.event.Series.LastObservedTime.Time
	}
	return o.event.EventTime.Time
}

// counted tells whether the API server has a count that is out of date.
func (o *object) counted() bool { return o.event.Series != nil && o.event.Series.Count != o.count }

// newWriter starts a writer, which adds to dropped what it has taken and not written. The caller ends it by close.
func newWriter(client rest.Interface, log *zap.Logger, p pace, dropped *atomic.Uint64) *writer {
	w := &writer{client: client, log: log, pace: p, dropped: dropped, queue: make(chan *eventsv1.Event, maxQueued),
		closing: make(chan struct{}), ended: make(chan struct{}), objects: make(map[alike]*object),
		retry: time.NewTimer(0)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	go w.run()
	return w
}

// offer has e written, unless too many wait. It never blocks.
func (w *writer) offer(e *eventsv1.Event) bool {
	select {
	case w.queue <- e:
		return true
	default:
		return false
	}
}

// close has run end, which writes what it has, and waits for it.
func (w *writer) close() {
	timer := time.AfterFunc(flushTime, w.cancel)
	close(w.closing)
	<-w.ended
	timer.Stop()
	w.cancel()
}

func (w *writer) run() {
	defer close(w.ended)
	defer w.retry.Stop()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case e := <-w.queue:
			w.add(e)
		case <-w.retry.C:
			w.away = false
		case now := <-sweep.C:
			w.sweep(now)
		case <-w.closing:
			w.flush()
			return
		}
		w.write()
	}
}

// add counts e where there is an object of events alike, and else makes one.
func (w *writer) add(e *eventsv1.Event) {
	of := alike{regarding: e.Regarding, reason: e.Reason, action: e.Action, kind: e.Type}
	o := w.objects[of]
	switch {
	case o == nil:
		w.named = max(e.EventTime.UnixNano(), w.named+1) // clocks may stand still
		e.Name = nameOf(e.Regarding.Name, w.named)
		o = &object{event: e}
		w.objects[of] = o
		w.have(o)
	case o.event.Series == nil:
		o.event.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: e.EventTime}
		w.have(o)
	default: // written by sweep
		o.event.Series.Count++
		o.event.Series.LastObservedTime = e.EventTime
	}
}

// have has o written.
func (w *writer) have(o *object) {
	if o.due.IsZero() {
		o.due = time.Now()
		w.pending = append(w.pending, o)
	}
}

// sweep has counts written that are due, and forgets what has not come again.
func (w *writer) sweep(now time.Time) {
	for of, o := range w.objects {
		over := now.Sub(o.seen()) >= seriesEnd
		if o.counted() && (over || now.Sub(o.written) >= seriesWrite) {
			w.have(o)
		}
		if over {
			delete(w.objects, of)
		}
	}
}

// write writes what is pending. An API server that is away is asked again later.
func (w *writer) write() {
	for len(w.pending) > 0 && !w.away {
		o := w.pending[0]
		err := w.put(o)
		switch {
		case err == nil:
			w.said = ""
		case w.ctx.Err() != nil || !refused(err) && time.Since(o.due) < w.pace.giveUp:
			w.away = true
			w.retry.Reset(w.pace.retry + rand.N(w.pace.retry/4+1))
			return
		default:
			w.drop(o, err)
		}
		o.due, w.pending = time.Time{}, w.pending[1:]
	}
}

// flush writes what there is, as long as the API server answers.
func (w *writer) flush() {
	for len(w.queue) > 0 {
		w.add(<-w.queue)
	}
	for _, o := range w.objects {
		if o.counted() {
			w.have(o)
		}
	}
	w.away = false
	w.write()
	w.dropped.Add(uint64(len(w.pending)))
}

// drop gives o up. A trouble that lasts is said once.
func (w *writer) drop(o *object, err error) {
	w.dropped.Add(1)
	if !o.created { // the next one alike is tried as the first
		for of, other := range w.objects {
			if other == o {
				delete(w.objects, of)
			}
		}
	}
	if said := err.Error(); said != w.said {
		w.said = said
		w.log.Warn("dropping events that the API server does not take", zap.String("reason", o.event.Reason),
			zap.Error(err))
	}
}

// refused tells whether the API server has answered, and would answer the same again.
func refused(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// put writes o: as a new object, or its count. A creation whose answer got lost finds that the object exists.
func (w *writer) put(o *object) error {
	ctx, done := context.WithTimeout(w.ctx, requestTime)
	defer done()
	if o.created {
		if err := w.patch(ctx, o); !apierrors.IsNotFound(err) {
			return err
		}
	}
	e := o.event
	err := w.client.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
	switch {
	case apierrors.IsAlreadyExists(err):
		o.created = true
		if o.counted() {
			return w.patch(ctx, o)
		}
	case err != nil:
		return fmt.Errorf("create event: %w", err)
	}
	o.wrote()
	return nil
}

// patch writes the count of o.
func (w *writer) patch(ctx context.Context, o *object) error {
	e := o.event
	patch, err := json.Marshal(struct {
		Series *eventsv1.EventSeries `json:"series"`
	}{e.Series})
	if err == nil {
		err = w.client.Patch(types.MergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(patch).
			Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("patch event: %w", err)
	}
	o.wrote()
	return nil
}

func (o *object) wrote() {
	o.created, o.written = true, time.Now()
	if o.event.Series != nil {
		o.count = o.event.Series.Count
	}
}

// nameOf names the object of an event about something of a name, at a time in ns.
func nameOf(of string, at int64) string {
	return fmt.Sprintf("%s.%x", strings.TrimRight(of[:min(len(of), maxName-suffix)], ".-"), at)
}

// instance is which of the controllers reports.
func instance() string {
	host, _ := os.Hostname() // without it, the name is that of all
	name := controller + "-" + host
	return name[:min(len(name), maxInstance)]
}
