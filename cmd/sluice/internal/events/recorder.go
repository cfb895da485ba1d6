package events

import (
	"context"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/journal"
)

const (
	// burst events may be reported at once, and then one every 1/rate seconds. client-go
	// holds on to each for two minutes at most if the API server does not answer.
	burst = 50
	rate  = 1.0 / 6

	// maxNote is how long a note may be, in bytes (events.k8s.io/v1).
	maxNote = 1024
)

// Recorder writes events to the journal, and so to the log, and, if NewAPI made it, to the API server, as objects
// of events.k8s.io/v1: those that are alike but for their notes become one object that
// counts them. It needs the verbs create and patch. The journal has no limit for them: events start or
// end something, and do not repeat.
type Recorder struct {
	// UIDOf returns the UID of a Service, without which kubectl describe does not show
	// its events; empty if it is not known. Set before the first Record; may be nil.
	UIDOf func(namespace, service string) types.UID

	to    *journal.Journal
	node  string
	stop  context.CancelFunc
	api   events.EventBroadcaster // nil if there is no API server
	write events.EventRecorder
	limit flowcontrol.RateLimiter

	recorded, dropped atomic.Uint64
}

// NewLog returns a Recorder for where there is no API server.
func NewLog(to *journal.Journal) *Recorder { return &Recorder{to: to} }

// NewAPI starts to write events about the node of this name. The caller ends it by
// Close.
func NewAPI(client eventsv1client.EventsV1Interface, node string, to *journal.Journal) (*Recorder, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Recorder{
		to: to, node: node, stop: cancel,
		api:   events.NewBroadcaster(&events.EventSinkImpl{Interface: client}),
		limit: flowcontrol.NewTokenBucketRateLimiter(rate, burst),
	}
	r.write = r.api.NewRecorder(scheme.Scheme, "sluice")
	if err := r.api.StartRecordingToSinkWithContext(ctx); err != nil {
		cancel()
		return nil, err
	}
	return r, nil
}

// Record reports e. It does not block, and may be called from anywhere.
func (r *Recorder) Record(e Event) {
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	r.to.Report(journal.Entry{Warning: e.Warning, Reason: e.Reason, Namespace: e.Namespace, Service: e.Service,
		Note: e.Note})
	if r.limit != nil && !r.limit.TryAccept() {
		r.dropped.Add(1)
		return
	}
	r.recorded.Add(1)
	if r.api != nil {
		note := e.Note
		if len(note) > maxNote {
			note = strings.ToValidUTF8(note[:maxNote], "")
		}
		r.write.Eventf(r.regarding(e), nil, kind, e.Reason, e.Action, "%s", note)
	}
}

// regarding refers to what e is about. kubectl describe finds events of a node by a
// UID that is its name, which is how kubelet and kube-proxy have always written them.
func (r *Recorder) regarding(e Event) *corev1.ObjectReference {
	if e.Service == "" {
		return &corev1.ObjectReference{Kind: "Node", Name: r.node, UID: types.UID(r.node)}
	}
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: e.Namespace, Name: e.Service}
	if r.UIDOf != nil {
		ref.UID = r.UIDOf(e.Namespace, e.Service)
	}
	return ref
}

// Stats counts what was reported, and what was not because of the rate limit.
func (r *Recorder) Stats() (recorded, dropped uint64) { return r.recorded.Load(), r.dropped.Load() }

// Close gives up what is not written yet.
func (r *Recorder) Close() {
	if r.api != nil {
		r.stop()
		r.api.Shutdown()
	}
}
