package events

import (
	"strings"
	"sync/atomic"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
)

const (
	// burst events may be reported at once, and then one every 1/rate seconds.
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

	to     *journal.Journal
	node   string
	writer *writer // nil if there is no API server
	limit  flowcontrol.RateLimiter

	recorded, dropped atomic.Uint64
}

// NewLog returns a Recorder for where there is no API server.
func NewLog(to *journal.Journal) *Recorder { return &Recorder{to: to} }

// NewAPI starts to write events about the node of this name. client is that of events.k8s.io/v1. What cannot be
// written is said in log. The caller ends it by Close.
func NewAPI(client rest.Interface, node string, to *journal.Journal, log *zap.Logger) *Recorder {
	return newRecorder(client, node, to, log, usual)
}

func newRecorder(client rest.Interface, node string, to *journal.Journal, log *zap.Logger, p pace) *Recorder {
	r := &Recorder{to: to, node: node, limit: flowcontrol.NewTokenBucketRateLimiter(rate, burst)}
	r.writer = newWriter(client, log, p, &r.dropped)
	return r
}

// Record reports e. It does not block, and may be called from anywhere.
func (r *Recorder) Record(e Event) {
	r.to.Report(journal.Entry{Warning: e.Warning, Reason: e.Reason, Namespace: e.Namespace, Service: e.Service,
		Note: e.Note})
	if r.limit != nil && !r.limit.TryAccept() || r.writer != nil && !r.writer.offer(r.object(e)) {
		r.dropped.Add(1)
		return
	}
	r.recorded.Add(1)
}

// object is e as the API has it, but for its name.
func (r *Recorder) object(e Event) *eventsv1.Event {
	o := &eventsv1.Event{EventTime: metav1.NowMicro(), Type: corev1.EventTypeNormal, Reason: e.Reason, Action: e.Action,
		Note: e.Note, Regarding: r.regarding(e), ReportingController: controller, ReportingInstance: instance()}
	o.Namespace = o.Regarding.Namespace
	if o.Namespace == "" {
		o.Namespace = metav1.NamespaceDefault
	}
	if e.Warning {
		o.Type = corev1.EventTypeWarning
	}
	if len(o.Note) > maxNote {
		o.Note = strings.ToValidUTF8(o.Note[:maxNote], "")
	}
	return o
}

// regarding refers to what e is about. kubectl describe finds events of a node by a
// UID that is its name, which is how kubelet and kube-proxy have always written them.
func (r *Recorder) regarding(e Event) corev1.ObjectReference {
	if e.Service == "" {
		return corev1.ObjectReference{Kind: "Node", Name: r.node, UID: types.UID(r.node)}
	}
	ref := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: e.Namespace, Name: e.Service}
	if r.UIDOf != nil {
		ref.UID = r.UIDOf(e.Namespace, e.Service)
	}
	return ref
}

// Stats counts what was reported, and what was not: because of the rate limit, or since the API server did not take it.
func (r *Recorder) Stats() (recorded, dropped uint64) { return r.recorded.Load(), r.dropped.Load() }

// Close writes what is not written yet, for a second at most, and gives up what the API server does not take. Nothing
// may be recorded afterwards.
func (r *Recorder) Close() {
	if r.writer != nil {
		r.writer.close()
	}
}
