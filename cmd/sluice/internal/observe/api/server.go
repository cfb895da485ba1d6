package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/history"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// Sources are what resources are made of. All are needed but the last.
type Sources struct {
	LB      *balancer.Balancer
	Now     func() int64 // the clock of balancer.Flow
	Mode    agent.Path   // of Services that request none
	Choice  func(lb.ID) (agent.Choice, bool)
	Servers []Server // in the order of protocols, and then the kernel
	Loops   int      // that each of them has at the most

	looking  sync.Mutex // one request looks at a loop at a time, however many there are
	Journal  *journal.Journal
	Wrong    func() []conditions.Condition
	Nodes    func() []string // that endpoints run on
	Settings []Setting
	Status   func() Status
	History  *history.Recorder
	Kernel   func() report.Counts // nil: the kernel forwards nothing
}

// resources are what there is at /v1/NAME, with the parameters that each takes and an answer.
var resources = []struct {
	name, means string
	params      []string
	answer      any
	get         func(*Sources, url.Values) (any, error)
}{
	{"status", "The process, and sums of what it serves.", nil, Status{}, (*Sources).status},
	{"services", "The ports of Services.", listParams, List[Service]{}, (*Sources).services},
	{"endpoints", "The endpoints of the ports of Services.", append([]string{"unhealthy"}, listParams...),
		List[Endpoint]{}, (*Sources).endpoints},
	{"connections", "Open TCP connections, SCTP associations and UDP flows.",
		append([]string{"limit", "continue"}, connectionParams...), List[Connection]{}, (*Sources).connections},
	{"clients", "The client addresses with the most open connections, or bytes.",
		append([]string{"limit", "sort"}, connectionParams...), Talkers{}, (*Sources).clients},
	{"drains", "What operators have drained.", nil, List[Drain]{}, (*Sources).drains},
	{"events", "What has happened and changed, the oldest first.",
		[]string{"namespace", "name", "port", "after", "limit", "wait"}, Events{}, (*Sources).events},
	{"history", "Samples of the node, or of one Service.", []string{"namespace", "name"}, List[Sample]{},
		(*Sources).history},
	{"config", "The settings in effect.", nil, List[Setting]{}, (*Sources).config},
	{"explain", "Which endpoint a client gets, and why.",
		[]string{"client", "address", "protocol", "namespace", "name", "port"}, List[Explanation]{},
		(*Sources).explain},
}

// writeTimeout is how long a client may take for an answer.
const writeTimeout = 10 * time.Second

// Handler serves all resources.
func (s *Sources) Handler() http.Handler {
	mux := http.NewServeMux()
	index := Index{Version: Version}
	for _, r := range resources {
		index.Resources = append(index.Resources, r.name)
		mux.HandleFunc("GET /"+Version+"/"+r.name, func(w http.ResponseWriter, q *http.Request) {
			query := q.URL.Query()
			answer, err := any(nil), check(query, r.params)
			if err == nil && query.Has("wait") {
				err = s.await(q.Context(), query)
			}
			if err == nil {
				answer, err = r.get(s, query)
			}
			if found, ok := answer.(interface{ none() bool }); err == nil && ok && found.none() && !query.Has("wait") {
				err = s.exists(query)
			}
			write(w, answer, err)
		})
	}
	mux.HandleFunc("GET /"+Version, func(w http.ResponseWriter, _ *http.Request) { write(w, index, nil) })
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		write(w, nil, &Error{http.StatusNotFound, fmt.Sprintf("there is no %s %s: GET /%s lists what there is",
			q.Method, q.URL.Path, Version)})
	})
	return mux
}

// Get returns a resource as a request for it is answered, of this type.
func Get[T any](s *Sources, resource string, q url.Values) (answer T, err error) {
	of, err := s.get(resource, q)
	if err != nil {
		return answer, err
	}
	return of.(T), nil
}

func (s *Sources) get(resource string, q url.Values) (any, error) {
	for _, r := range resources {
		if r.name == resource {
			if err := check(q, r.params); err != nil {
				return nil, err
			}
			return r.get(s, q)
		}
	}
	return nil, &Error{http.StatusNotFound, "there is no resource " + resource}
}

// Error is what is answered in place of a resource.
type Error struct {
	Code    int    `json:"code"` // of HTTP
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// refuse is an error of the request.
func refuse(format string, args ...any) error {
	return &Error{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// check refuses parameters that a resource does not take.
func check(given url.Values, params []string) error {
	for name := range given {
		if !slices.Contains(params, name) {
			return refuse("there is no parameter %q here: give %s", name, strings.Join(params, ", "))
		}
	}
	return nil
}

// write answers a request.
func write(w http.ResponseWriter, answer any, err error) {
	code := http.StatusOK
	if err != nil {
		failure, ok := errors.AsType[*Error](err)
		if !ok {
			failure = &Error{http.StatusInternalServerError, err.Error()}
		}
		answer, code = failure, failure.Code
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer has one
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the client may have gone
}

func (s *Sources) status(url.Values) (any, error) { return s.Whole(), nil }

// Whole returns the status with what is wrong.
func (s *Sources) Whole() Status {
	out, all := s.Status(), s.Wrong()
	out.ConditionCount = len(all)
	out.Conditions = append([]conditions.Condition{}, all[:min(len(all), MostConditions)]...)
	return out
}

// WrongBy returns what is wrong by Service.
func (s *Sources) WrongBy() map[lb.Name][]string {
	out := make(map[lb.Name][]string)
	for _, c := range s.Wrong() {
		if c.Service != "" {
			of := lb.Name{Namespace: c.Namespace, Name: c.Service}
			out[of] = append(out[of], c.Text)
		}
	}
	return out
}

func (s *Sources) config(url.Values) (any, error) { return List[Setting]{Items: s.Settings}, nil }

// history returns the samples of the node, or those of a Service: none where they are not kept.
func (s *Sources) history(q url.Values) (any, error) {
	if !q.Has("name") {
		return List[Sample]{Items: append([]Sample{}, s.History.Node()...)}, nil
	}
	samples, _ := s.History.Service(lb.Name{Namespace: q.Get("namespace"), Name: q.Get("name")})
	return List[Sample]{Items: append([]Sample{}, samples...)}, nil
}

// events returns the last that there are, or those after a number.
func (s *Sources) events(q url.Values) (any, error) {
	after, err := number(q, "after", 0, 1<<63)
	if err != nil {
		return nil, err
	}
	limit, err := number(q, "limit", journal.Size, journal.Size)
	if err != nil {
		return nil, err
	}
	last := s.Journal.Last() // what comes in between is in the list, or in the next one
	all := s.Journal.After(after, journal.Size)
	matches := func(e Event) bool {
		return (q.Get("namespace") == "" || e.Namespace == q.Get("namespace")) &&
			(q.Get("name") == "" || e.Service == q.Get("name"))
	}
	all = slices.DeleteFunc(all, func(e Event) bool { return !matches(e) })
	if drop := len(all) - int(limit); drop > 0 {
		all = all[drop:]
	}
	return Events{List[Event]{Items: all}, last}, nil
}

// mostWait is how long a request may wait for an event.
const mostWait = 10 * time.Second

// await waits for the event after the one that a request names.
func (s *Sources) await(ctx context.Context, q url.Values) error {
	after, err := number(q, "after", 0, 1<<63)
	if err != nil {
		return err
	}
	wait, err := time.ParseDuration(q.Get("wait"))
	if err != nil || wait < 0 || wait > mostWait {
		return refuse("wait %q is no duration up to %s: give one like 5s", q.Get("wait"), mostWait)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if !s.Journal.Wait(ctx, after) {
		return &Error{http.StatusServiceUnavailable, "too many clients wait for events: ask without wait, or later"}
	}
	return nil
}
