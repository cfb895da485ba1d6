package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/nearest"
	"github.com/sluice-lb/sluice/lb"
)

// drainTimeout is how long a drain may take to be applied, which is less than a client waits.
const drainTimeout = 8 * time.Second

// maxDeadline bounds the deadline of a drain, as the duration of the policy drain.
const maxDeadline, longest = 720 * time.Hour, "720h"

// Writer is what changes the running process. Only the socket has it.
type Writer struct {
	*Sources
	Drain func(ctx context.Context, d lb.Drain, undo, force bool) error
}

// Handler serves all resources, and what changes something.
func (w Writer) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", w.Sources.Handler())
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		mux.HandleFunc(method+" /"+Version+"/drains", func(out http.ResponseWriter, r *http.Request) {
			answer, err := w.drain(r)
			write(out, answer, err)
		})
	}
	return mux
}

// drainParams are the parameters of a drain, undrainParams those of its end.
var (
	drainParams   = []string{"endpoint", "namespace", "name", "deadline", "force"}
	undrainParams = drainParams[:3]
)

// drain drains endpoints, or undoes that.
func (w Writer) drain(r *http.Request) (any, error) {
	q, undo, params := r.URL.Query(), r.Method == http.MethodDelete, drainParams
	if undo {
		params = undrainParams
	}
	if err := check(q, params); err != nil {
		return nil, err
	}
	d, err := drainOf(q)
	if err != nil {
		return nil, err
	}
	var after time.Duration
	if text := q.Get("deadline"); text != "" {
		if after, err = time.ParseDuration(text); err != nil || after < 0 || after > maxDeadline {
			return nil, refuse("deadline %q is no duration from 0 to %s: give one like 30s or 5m", text, longest)
		}
	}
	if after > 0 {
		d.Deadline = w.Now() + int64(after)
	}
	d.By = r.RemoteAddr
	ctx, cancel := context.WithTimeout(r.Context(), drainTimeout)
	defer cancel()
	err = w.Drain(ctx, d, undo, q.Get("force") == "true")
	one := w.drained(&d)
	if stranded, ok := errors.AsType[*agent.StrandedError](err); ok {
		return nil, &Error{http.StatusConflict, stranded.Error() + ": --force drains it nevertheless"}
	}
	switch {
	case errors.Is(err, agent.ErrNoEndpoint):
		return nil, w.noEndpoint(&d, &one)
	case errors.Is(err, agent.ErrNotDrained):
		return nil, &Error{http.StatusNotFound,
			one.text() + " is not drained: undo a drain by its own words, as sluice drain lists them"}
	case err != nil:
		return nil, err
	}
	e := journal.Entry{Reason: journal.Drained, Namespace: d.Service.Namespace, Service: d.Service.Name,
		Note: one.text() + ", by " + d.By}
	switch {
	case undo:
		e.Reason = journal.DrainUndone
	case after > 0:
		e.Note += fmt.Sprintf(", connections are reset in %s", after)
	}
	w.Journal.Report(e)
	if drains := w.LB.Drains(); !undo {
		if at := slices.IndexFunc(drains.All(), d.Same); at >= 0 { // else it is undone already
			one.Endpoints = drains.Counts(w.LB.Table().Services())[at]
		}
	}
	return one, nil
}

// noEndpoint says that a drain is of nothing, and what may be meant.
func (w Writer) noEndpoint(d *lb.Drain, one *Drain) error {
	if of := d.Service; of != (lb.Name{}) {
		if err := w.exists(url.Values{"namespace": {of.Namespace}, "name": {of.Name}}); err != nil {
			return err
		}
	}
	text := "there is no endpoint " + one.text()
	if d.Node != "" {
		text = fmt.Sprintf("no endpoint has the nodeName %s", d.Node)
		if near := nearest.Of(d.Node, slices.Values(w.Nodes())); near != "" {
			text += ": did you mean node/" + near + "?"
		}
	} else if near := w.nearEndpoint(d.Addr); near != "" {
		text += ": did you mean " + near + "?"
	}
	return &Error{http.StatusNotFound, text + " (--force drains an endpoint that comes later)"}
}

// nearEndpoint returns the endpoint that may be meant by an address.
func (w Writer) nearEndpoint(addr netip.AddrPort) string {
	const most = 10_000 // that are looked at
	all, host := make([]string, 0, most), addr.Addr().String()
	for _, s := range w.LB.Table().Services() {
		for i := range s.Backends {
			b := s.Backends[i].Addr
			switch {
			case b.Addr() == addr.Addr():
				return b.String()
			case len(all) < most:
				all = append(all, b.Addr().String())
			}
		}
	}
	return nearest.Of(host, slices.Values(all))
}

// drainOf reads what is to be drained.
func drainOf(q url.Values) (d lb.Drain, err error) {
	text := q.Get("endpoint")
	name, isNode := strings.CutPrefix(text, "node/")
	addr, notAddr := netip.ParseAddr(strings.Trim(text, "[]"))
	switch {
	case isNode && name != "":
		d.Node = name
	case notAddr == nil:
		d.Addr = netip.AddrPortFrom(addr.Unmap().WithZone(""), 0)
	default:
		withPort, err := netip.ParseAddrPort(text)
		if err != nil {
			return d, refuse("%q is no endpoint: give an address like 10.0.0.1, 10.0.0.1:8080 or [fd00::1]:80, or "+
				"node/NAME", text)
		}
		d.Addr = netip.AddrPortFrom(withPort.Addr().Unmap().WithZone(""), withPort.Port())
	}
	d.Service = lb.Name{Namespace: q.Get("namespace"), Name: q.Get("name")}
	if (d.Service.Namespace == "") != (d.Service.Name == "") {
		return d, refuse("one Service is named by its namespace and its name")
	}
	return d, nil
}

// drains lists what is drained.
func (s *Sources) drains(url.Values) (any, error) {
	page, drains := List[Drain]{Items: []Drain{}}, s.LB.Drains()
	counts := drains.Counts(s.LB.Table().Services())
	for i, d := range drains.All() { // at most 256
		one := s.drained(&d)
		one.Endpoints = counts[i]
		page.Items = append(page.Items, one)
	}
	return page, nil
}

func (s *Sources) drained(d *lb.Drain) Drain {
	out := Drain{Endpoint: d.Addr.String(), Namespace: d.Service.Namespace, Name: d.Service.Name, By: d.By}
	switch {
	case d.Node != "":
		out.Endpoint = "node/" + d.Node
	case d.Addr.Port() == 0:
		out.Endpoint = d.Addr.Addr().String()
	}
	if d.Deadline != 0 {
		at := s.when(d.Deadline)
		out.Deadline = &at
	}
	return out
}

// text names the endpoints of a drain.
func (d *Drain) text() string {
	if d.Name == "" {
		return d.Endpoint
	}
	return fmt.Sprintf("%s of %s/%s", d.Endpoint, d.Namespace, d.Name)
}

// why is the reason of the state of an endpoint that is drained.
func (d *Drain) why() string {
	reason := "drained"
	if d.By != "" {
		reason += " by " + d.By
	}
	if d.Deadline != nil {
		reason += ", connections are reset at " + d.Deadline.UTC().Format(time.RFC3339)
	}
	return reason
}
