package page

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
)

// tookOver is the reason of a hand-over.
const tookOver = "TookOver"

// event is one of the journal.
type event struct {
	api.Event
	Href string // of its Service
	Ago  string
}

// eventList is the page of what has changed lately.
type eventList struct {
	Search   string
	Warnings bool
	Events   []event
	Pager    pager
}

func (p *pages) events(r *http.Request, f *frame) (body, error) {
	f.Title, f.Tab = "Events", "events"
	q := r.URL.Query()
	l := &eventList{Search: strings.TrimSpace(q.Get("q")), Warnings: q.Has("warnings")}
	words := strings.Fields(strings.ToLower(l.Search))
	all := slices.DeleteFunc(p.api.Journal.After(0, journal.Size), func(e api.Event) bool {
		text := strings.ToLower(e.Namespace + "/" + e.Service + " " + e.Reason + " " + e.Note)
		return l.Warnings && !e.Warning ||
			slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
	})
	page, _ := strconv.Atoi(q.Get("page"))
	pages := max(1, (len(all)+rows-1)/rows)
	page = max(1, min(page, pages))
	to := len(all) - (page-1)*rows // the newest first
	from := max(0, to-rows)
	l.Events = eventsOf(all[from:to], f.Now)
	l.Pager = pager{From: min((page-1)*rows+1, len(all)), To: len(all) - from, All: len(all)}
	href := func(page int) string {
		v := url.Values{"page": {strconv.Itoa(page)}}
		if l.Search != "" {
			v.Set("q", l.Search)
		}
		if l.Warnings {
			v.Set("warnings", "1")
		}
		return "/events?" + v.Encode()
	}
	if page > 1 {
		l.Pager.Previous = href(page - 1)
	}
	if page < pages {
		l.Pager.Next = href(page + 1)
	}
	return l, nil
}

// eventsOf returns events as pages show them, the newest first.
func eventsOf(of []api.Event, now time.Time) (out []event) {
	for _, e := range slices.Backward(of) {
		one := event{Event: e, Ago: ago(now, e.Time)}
		if e.Service != "" {
			one.Href = serviceHref(e.Namespace, e.Service)
		}
		out = append(out, one)
	}
	return out
}
