package events

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/journal"
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
	client, err := eventsv1client.NewForConfig(&rest.Config{Host: server.URL,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewAPI(client, "node-1", journal.New(zap.NewNop()))
	if err != nil {
		t.Fatal(err)
	}
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
