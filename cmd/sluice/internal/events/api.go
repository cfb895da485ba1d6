package events

import (
	"context"
	"strings"
	"sync/atomic"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// burst events may be reported at once, and then one every 1/rate seconds. client-go
	// holds on to each for two minutes at most if the API server does not answer.
	burst = 50
	rate  = 1.0 / 6

	// maxNote is how long a note may be, in bytes (events.k8s.io/v1).
	maxNote = 1024
)

// API writes events to the API server, as objects of events.k8s.io/v1, and to the
// log. Those that are alike but for their notes become one object that counts them.
// It needs the verbs create and patch.
type API struct {
	// UIDOf returns the UID of a Service, without which kubectl describe does not show
	// its events; empty if it is not known. Set before the first Record; may be nil.
	UIDOf func(namespace, service string) types.UID

	log      *zap.Logger
	node     string
	stop     context.CancelFunc
	events   events.EventBroadcaster
	recorder events.EventRecorder
	limit    flowcontrol.RateLimiter

	recorded, dropped atomic.Uint64
}

// NewAPI starts to write events about the node of this name. The caller ends it by
// Close.
func NewAPI(client eventsv1client.EventsV1Interface, node string, log *zap.Logger) (*API, error) {
	ctx, cancel := context.WithCancel(context.Background())
	a := &API{
		log: log, node: node, stop: cancel,
		events: events.NewBroadcaster(&events.EventSinkImpl{Interface: client}),
		limit:  flowcontrol.NewTokenBucketRateLimiter(rate, burst),
	}
	a.recorder = a.events.NewRecorder(scheme.Scheme, "sluice")
	if err := a.events.StartRecordingToSinkWithContext(ctx); err != nil {
		cancel()
		return nil, err
	}
	return a, nil
}

// Record hands e over to be written.
func (a *API) Record(e Event) {
	write(a.log, e)
	if !a.limit.TryAccept() {
		a.dropped.Add(1)
		return
	}
	a.recorded.Add(1)
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	a.recorder.Eventf(a.regarding(e), nil, kind, e.Reason, e.Action, "%s", short(e.Note))
}

// regarding refers to what e is about. kubectl describe finds events of a node by a
// UID that is its name, which is how kubelet and kube-proxy have always written them.
func (a *API) regarding(e Event) *corev1.ObjectReference {
	if e.Service == "" {
		return &corev1.ObjectReference{Kind: "Node", Name: a.node, UID: types.UID(a.node)}
	}
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: e.Namespace, Name: e.Service}
	if a.UIDOf != nil {
		ref.UID = a.UIDOf(e.Namespace, e.Service)
	}
	return ref
}

// Stats counts what was handed over and what was not.
func (a *API) Stats() (recorded, dropped uint64) { return a.recorded.Load(), a.dropped.Load() }

// Close gives up what is not written yet.
func (a *API) Close() {
	a.stop()
	a.events.Shutdown()
}

// short cuts a note to what the API takes.
func short(note string) string {
	if len(note) <= maxNote {
		return note
	}
	return strings.ToValidUTF8(note[:maxNote], "")
}
