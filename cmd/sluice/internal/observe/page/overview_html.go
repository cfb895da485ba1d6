package page

// html writes the first page.
func (o *overview) html(w *writer, f *frame) {
	w.put(`<div id="node">`)
	for _, trouble := range f.trouble() {
		w.put(`<p class="trouble"><svg class="icon" role="img" aria-label="Trouble"><use href="#failing"/></svg>%</p>`,
			trouble)
	}
	w.put("<h1 class=\"hidden\">The node</h1>\n<dl class=\"facts\">\n")
	for _, one := range f.facts() {
		w.put(`<div><dt>%</dt><dd><b>%</b>`, one.name, one.value)
		for _, d := range one.details {
			w.put(` <span`+choose(d.warns, ` class="warn"`)+choose(d.long, ` class="long"`)+`>%</span>`, d.text)
		}
		if d := f.Status.Descriptors; one.meter && d.Limit > 0 {
			w.put(` <meter min="0" max="%" high="%" value="%" aria-label="File descriptors in use">%</meter>`,
				d.Limit, f.high(),
				d.Used, d.Used)
		}
		w.put("</dd></div>\n")
	}
	w.put("</dl>\n<div class=\"lately\">\n")
	w.charts(o.Charts)
	w.put(`<section aria-labelledby="events"><h2 id="events">What changed lately</h2>`)
	w.eventList(o.Events, "<p>Nothing.</p>")
	w.put(`<p><a href="/events">All events</a></p></section>
</div>
</div>
<section aria-labelledby="services">
<div class="bar"><h2 id="services">Services</h2>
<form role="search" method="get" action="/">`)
	w.search("Search Services", o.Query.Search, "name, or IP address")
	if o.Query.State != "" {
		w.put(`<input type="hidden" name="state" value="%">`, o.Query.State)
	}
	if o.Query.Sort != usualOrder {
		w.put(`<input type="hidden" name="sort" value="%">`, o.Query.Sort)
	}
	w.put("<button>Search</button></form></div>\n<div id=\"list\">\n")
	o.table(w)
	w.pager(&o.Pager)
	w.put(`<p class="note">%</p>`, columns[0].about+".")
	w.put("</div>\n</section>\n")
}

// table writes the Services, and what leads to others.
func (o *overview) table(w *writer) {
	w.put(`<nav class="states" aria-label="Services by state">`)
	for _, s := range o.States {
		w.put(`<a href="%" class="%"`+choose(s.Current, ` aria-current="true"`)+`>`, s.Href, s.Class)
		if s.Class != allStates {
			w.icon(s.Class)
		}
		w.put(`% <b>%</b></a>`, s.Word, count(s.Count))
	}
	w.put("</nav>\n")
	w.table("Services", "Services with their state, path, endpoints and traffic")
	for _, h := range o.Heads {
		w.put(`<th scope="col" class="%" title="%"`, h.Class, h.About)
		if h.Sorted != "" {
			w.put(` aria-sort="%"`, h.Sorted)
		}
		if h.Href != "" {
			w.put(`><a href="%">%</a></th>`, h.Href, h.Label)
		} else {
			w.put(`>%</th>`, h.Label)
		}
	}
	w.heads()
	for i := range o.Rows {
		o.Rows[i].html(w)
	}
	switch {
	case len(o.Rows) > 0:
	case o.Query.Search != "" || o.Query.State != "":
		w.put(`<tr><td colspan="11" class="empty">No Service is found. <a href="/">Show all</a></td></tr>`)
	default:
		w.put(`<tr><td colspan="11" class="empty">There are no Services.</td></tr>`)
	}
	w.endTable()
}

func (r *row) html(w *writer) {
	w.put(`<tr><td>`)
	w.state(r.Class, r.Word)
	w.put(`</td><th scope="row" class="name"><a href="%"><bdi>%</bdi></a>`, r.Href, cut(r.Name, 128))
	if r.Wrong != "" {
		w.put(` <span class="warn partial">%</span>`, cut(r.Wrong, 256))
	}
	w.put(`</th><td class="code wide">%`, r.Address)
	if r.More > 0 {
		w.put(` <span class="more">+%</span>`, r.More)
	}
	w.put(`</td><td class="wide">%`, r.Path)
	if r.Writing {
		w.put(` <span class="warn partial" title="the kernel's rules for it are being written">writing</span>`)
	}
	if r.Fallback != "" {
		w.put(` <span class="warn partial" title="%">not as requested</span>`, r.Fallback)
	}
	w.put(`</td><td class="number" data-label="Endpoints">% / %</td>`, r.Eligible, r.Endpoints)
	for _, n := range r.Numbers {
		w.put(`<td class="number`+choose(n.Zero, " zero")+choose(n.Wide, " wide")+`" data-label="%">%`, n.Label, n.Text)
		if n.Note != "" {
			w.put(` <span class="warn">%</span>`, n.Note)
		}
		w.put("</td>")
	}
	w.put("</tr>\n")
}
