package page

// html writes the page of events.
func (l *eventList) html(w *writer, f *frame) {
	w.put(`<div class="bar"><h1>Events</h1>
<form role="search" method="get" action="/events">`)
	w.search("Search events", l.Search, "Service, reason or note")
	w.put(`<label><input type="checkbox" name="warnings" value="1"` + choose(l.Warnings, " checked") +
		`> warnings only</label> <button>Search</button></form></div>
<div id="list">
`)
	s := &f.Status
	w.put(`<p>Serving since %, this process since %. `, clock(s.Serving), clock(s.Started))
	if s.HandOvers.Last != nil {
		w.put(`It has taken over % from process %; hand-overs so far: %.</p>`, ago(f.Now, s.HandOvers.Last),
			s.HandOvers.From,
			count(s.HandOvers.Count))
	} else {
		w.put("There was no hand-over.</p>")
	}
	w.table("events", "Events, the newest first")
	w.heads("Time", "-Ago", "-Kind", "Reason", "Service", "Note")
	for i := range l.Events {
		e := &l.Events[i]
		handOver := e.Reason == tookOver
		w.put(`<tr`+choose(handOver, ` class="handover"`)+`><td class="code still"><time datetime="%">%</time></td>`+
			`<td class="still wide">%</td><td class="wide">`, stamp(e.Time), clock(e.Time), e.Ago)
		switch {
		case e.Warning:
			w.state("failing", "warning")
		case handOver:
			w.put("hand-over")
		default:
			w.put("normal")
		}
		w.put(`</td><th scope="row">%</th><td class="name">`, e.Reason)
		if e.Service != "" {
			w.serviceLink(e)
		}
		w.put("</td><td class=\"note\"><bdi>%</bdi></td></tr>\n", e.Note)
	}
	if len(l.Events) == 0 {
		w.put(`<tr><td colspan="6" class="empty">No event is found.</td></tr>`)
	}
	w.endTable()
	w.pager(&l.Pager)
	w.put("</div>\n")
}

// notShown is the page in place of one that cannot be made.
type notShown struct{ why string }

func (n notShown) html(w *writer, _ *frame) {
	w.put("<h1>Not shown</h1>\n<p>%</p>\n<p><a href=\"/\">All Services</a></p>\n", n.why)
}
