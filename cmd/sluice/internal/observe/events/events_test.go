package events

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kubeapi"
	"github.com/sluice-lb/sluice/lb"
)

// request is what came to the API server.
type request struct {
	method, path string
	event        eventsv1.Event
}

// newAPI returns an API that talks to a server, which passes on what it is asked and answers as
// the API server does.
func newAPI(t *testing.T) (*Recorder, <-chan request) {
	got := make(chan request, 1000)
	return connect(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has gone
		}
		q := request{method: r.Method, path: r.URL.Path}
		if err := json.Unmarshal(body, &q.event); err != nil {
			t.Errorf("%s %s: %v in %s", r.Method, r.URL, err, body)
		}
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusCreated)
		}
		_, _ = w.Write(body)
		got <- q
	}), got
}

// connect returns a Recorder that talks to a server.
func connect(t *testing.T, serve http.HandlerFunc) *Recorder {
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	client, err := kubeapi.Events(&rest.Config{Host: server.URL,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRecorder(client, "node-1", journal.New(zap.NewNop()), zap.NewNop(), usual)
	t.Cleanup(r.Close)
	return r
}

func next(t *testing.T, got <-chan request) request {
	t.Helper()
	select {
	case q := <-got:
		return q
	case <-time.After(30 * time.Second):
		t.Fatal("nothing comes to the API server")
		return request{}
	}
}

var (
	web   = lb.ID{Namespace: "default", Name: "web", Port: "http", Protocol: lb.TCP}
	taken = lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort("192.0.2.10:30080")}
)

// TestAPI: what reaches the API server, and that only the verbs create and patch are used.
func TestAPI(t *testing.T) {
	a, got := newAPI(t)
	a.UIDOf = func(namespace, service string) types.UID { return types.UID("uid-of-" + namespace + "-" + service) }
	a.Record(Starting())
	q := next(t, got)
	e := q.event
	if q.method != "POST" || q.path != "/apis/events.k8s.io/v1/namespaces/default/events" || e.Reason != "Starting" ||
		e.Action != "StartKubeProxy" || e.Type != "Normal" || e.Note != "" || e.ReportingController != "sluice" ||
		e.Regarding.Kind != "Node" || e.Regarding.Name != "node-1" || e.Regarding.UID != "node-1" {
		t.Errorf("Starting = %+v", q)
	}

	a.Record(PortClaimed(web, "node-1", errors.New("hold node port 30080: address already in use")))
	q = next(t, got)
	e = q.event
	if q.method != "POST" || e.Regarding.Kind != "Service" || e.Regarding.Namespace != "default" || e.Regarding.Name != "web" ||
		e.Regarding.UID != "uid-of-default-web" || e.Reason != "PortAlreadyClaimed" || e.Type != "Warning" ||
		e.Note != "node node-1 cannot hold node port 30080: address already in use" {
		t.Errorf("PortClaimed = %+v", q)
	}
	a.Record(PortClaimed(web, "node-1", errors.New("hold node port 30080: address already in use")))
	q = next(t, got)
	if q.method != "PATCH" || !strings.HasPrefix(q.path, "/apis/events.k8s.io/v1/namespaces/default/events/web.") || q.event.Series == nil || q.event.Series.Count != 2 {
		t.Errorf("the same again = %+v", q)
	}
	a.Record(SyncFailed(errors.New(strings.Repeat("ä", 2000))))
	if e := next(t, got).event; len(e.Note) != maxNote || strings.ContainsRune(e.Note, '\uFFFD') {
		t.Errorf("a long note has %d bytes: %s", len(e.Note), e.Note)
	}
}

// TestBounded: an API server that does not answer holds up nobody, and what is too
// much is counted.
func TestBounded(t *testing.T) {
	hang := make(chan struct{})
	a := connect(t, func(http.ResponseWriter, *http.Request) { <-hang })
	defer close(hang)
	const many = 10_000
	for range many {
		a.Record(Synced())
	}
	recorded, dropped := a.Stats()
	if recorded+dropped != many || recorded < burst || recorded > 2*burst {
		t.Errorf("%d recorded, %d dropped of %d; want %d recorded or a few more", recorded, dropped, many, burst)
	}
}

// flaky is a server that answers with these statuses, one after the other and the last for ever; 0: it closes the
// connection. It passes on what it took.
func flaky(t *testing.T, p pace, statuses ...int) (r *Recorder, got <-chan request, lines *observer.ObservedLogs) {
	took := make(chan request, 100)
	var next atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := request{method: r.Method, path: r.URL.Path}
		if err := json.NewDecoder(r.Body).Decode(&q.event); err != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		status := statuses[min(int(next.Add(1)), len(statuses))-1]
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		took <- q
	}))
	t.Cleanup(server.Close)
	client, err := kubeapi.Events(&rest.Config{Host: server.URL,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	core, lines := observer.New(zap.InfoLevel)
	return newRecorder(client, "node-1", journal.New(zap.NewNop()), zap.New(core), p), took, lines
}

// TestAway: an API server that is away gets the events when it is back, in their order; one whose answer was lost has
// the object already.
func TestAway(t *testing.T) {
	a, got, lines := flaky(t, pace{time.Millisecond, time.Minute}, 0, 503, 500, 409, 201, 201)
	a.Record(Starting())
	for _, want := range []int{503, 500, 409} {
		if q := next(t, got); q.method != "POST" || q.event.Reason != "Starting" {
			t.Errorf("at %d: %+v", want, q)
		}
	}
	a.Record(Synced())
	if q := next(t, got); q.method != "POST" || q.event.Reason != "SyncedProxyRules" {
		t.Errorf("the next = %+v", q)
	}
	a.Close()
	if recorded, dropped := a.Stats(); recorded != 2 || dropped != 0 || lines.Len() != 0 {
		t.Errorf("%d recorded, %d dropped, logged %v", recorded, dropped, lines.All())
	}
}

// TestRefused: what the API server refuses, or does not take in time, is counted, and said once.
func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		p      pace
		status int
	}{"forbidden": {usual, 403}, "away for too long": {pace{time.Millisecond, 0}, 503}} {
		t.Run(name, func(t *testing.T) {
			a, got, lines := flaky(t, test.p, test.status)
			for range 3 { // each is tried as if it were the first
				a.Record(Synced())
				if q := next(t, got); q.method != "POST" {
					t.Errorf("%+v", q)
				}
			}
			a.Close()
			if recorded, dropped := a.Stats(); recorded != 3 || dropped != 3 || lines.Len() != 1 {
				t.Errorf("%d recorded, %d dropped, logged %v", recorded, dropped, lines.All())
			}
		})
	}
}

// TestClose: what has come is written, and the count of what has come often; a server that does not answer is not
// waited for.
func TestClose(t *testing.T) {
	a, got, _ := flaky(t, usual, 201, 201, 404, 201)
	for range 5 {
		a.Record(Synced())
	}
	if q := next(t, got); q.method != "POST" {
		t.Errorf("first = %+v", q)
	}
	a.Close()
	var last request
	for len(got) > 0 {
		last = <-got
	}
	if s := last.event.Series; s == nil || s.Count != 5 {
		t.Errorf("written at last: %+v", last)
	}

	hang, ended := make(chan struct{}), make(chan struct{})
	defer close(hang)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	client, err := kubeapi.Events(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	b := newRecorder(client, "node-1", journal.New(zap.NewNop()), zap.NewNop(), usual)
	b.Record(Synced())
	go func() { b.Close(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("Close waits for a server that does not answer")
	}
	if recorded, dropped := b.Stats(); recorded != 1 || dropped != 1 {
		t.Errorf("%d recorded, %d dropped", recorded, dropped)
	}
}

// TestSeries: a count is written when nothing alike has come for a while, and forgotten then.
func TestSeries(t *testing.T) {
	w := &writer{objects: make(map[alike]*object)}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &Recorder{node: "node-1"}
	for i := range 4 {
		e := r.object(Synced())
		e.EventTime = metav1.NewMicroTime(at.Add(time.Duration(i) * time.Second))
		w.add(e)
	}
	o := w.pending[0]
	if len(w.pending) != 1 || o.event.Series.Count != 4 {
		t.Fatalf("pending %+v", w.pending)
	}
	o.wrote()
	o.written, o.due, w.pending = at, time.Time{}, nil
	w.add(r.object(Synced()))
	o.event.Series.LastObservedTime = metav1.NewMicroTime(at.Add(20 * time.Minute))
	w.sweep(at.Add(21 * time.Minute))
	if len(w.pending) != 0 || len(w.objects) != 1 {
		t.Errorf("too early: pending %+v", w.pending)
	}
	w.sweep(at.Add(26 * time.Minute))
	if len(w.pending) != 1 || len(w.objects) != 0 {
		t.Errorf("at the end: pending %+v, objects %v", w.pending, w.objects)
	}
}

func TestLog(t *testing.T) {
	core, lines := observer.New(zap.InfoLevel)
	l := NewLog(journal.New(zap.New(core)))
	l.Record(CheckFailed("default", "web", "node-1", errors.New("taken")))
	l.Record(PortReleased(web, taken, "node-1"))
	if recorded, dropped := l.Stats(); recorded != 2 || dropped != 0 {
		t.Errorf("%d recorded, %d dropped", recorded, dropped)
	}
	all := lines.All()
	if len(all) != 2 || all[0].Level != zap.WarnLevel || all[1].Level != zap.InfoLevel {
		t.Fatalf("lines %+v", all)
	}
	if f := all[0].ContextMap(); f["reason"] != "FailedToStartServiceHealthcheck" || f["service"] != "default/web" || !strings.Contains(f["note"].(string), "taken") {
		t.Errorf("fields %v", f)
	}
}

// TestEjections: an event of an ejection says which endpoint, for how long at most and for what; its end is no warning.
func TestEjections(t *testing.T) {
	e := lb.Ejection{Service: lb.ID{Namespace: "default", Name: "web", Port: "http", Protocol: lb.TCP},
		Backend: netip.MustParseAddrPort("10.0.0.9:80"), Err: errors.New("connection refused"), Time: 30e9, Times: 2}
	got := EndpointEjected(e, "node-1")
	if want := "node node-1 sends no new connections of default/web:http to endpoint 10.0.0.9:80, ejected for up to 30s (2 in a row): " +
		"connection refused"; got.Note != want || !got.Warning || got.Reason != "EndpointEjected" || got.Service != "web" {
		t.Errorf("%+v, want %q", got, want)
	}
	e.Returned, e.Err, e.Time = true, nil, 1234567890
	got = EndpointReturned(e, "node-1")
	if want := "node node-1 sends connections of default/web:http to endpoint 10.0.0.9:80 again, which was ejected for 1.235s"; got.Note != want ||
		got.Warning || got.Reason != "EndpointReturned" {
		t.Errorf("%+v, want %q", got, want)
	}
	e.Check = true
	if got := EndpointReturned(e, "node-1"); got.Reason != "EndpointCheckPassed" || got.Warning {
		t.Errorf("%+v", got)
	}
	e.Err = errors.New("status 503")
	if got := EndpointEjected(e, "node-1"); got.Reason != "EndpointCheckFailed" || !got.Warning || !strings.HasSuffix(got.Note, "whose check fails: status 503") {
		t.Errorf("%+v", got)
	}
}

// TestClientsRefused: the note has the code of the access log, the reason of the metric, and what to do.
func TestClientsRefused(t *testing.T) {
	id := lb.ID{Namespace: "default", Name: "web", Port: "http", Protocol: lb.TCP}
	got := ClientsRefused(id, "node-1", lb.OverClient, 12, 5*time.Second)
	if want := "node node-1 refused 12 clients of default/web:http within 5s (PR max_client_connections): the client has " +
		"max-client-connections connections already; raise the number, or ask the client"; got.Note != want ||
		!got.Warning || got.Reason != "ClientsRefused" || got.Action != "MaxClientConnections" || got.Service != "web" {
		t.Errorf("%+v, want %q", got, want)
	}
}

// TestKinds: each is declared once and says what it means, and what ends it is no warning.
func TestKinds(t *testing.T) {
	of := make(map[string]Kind)
	for _, k := range Kinds() {
		if _, twice := of[k.Reason]; twice || k.Means == "" {
			t.Errorf("%s has no meaning, or there are two", k.Reason)
		}
		of[k.Reason] = k
	}
	for _, k := range Kinds() {
		if end, ok := of[k.EndsWith]; k.EndsWith != "" && (!ok || end.Warning || !k.Warning || end.Action != k.Action) {
			t.Errorf("%s ends with %+v", k.Reason, end)
		}
	}
	if got := Starting(); len(of) < 20 || got.Reason != "Starting" || got.Action != "StartKubeProxy" {
		t.Errorf("%d kinds, the first Event is %+v", len(of), got)
	}
}
