package page

// icons are the symbols of states, by their classes: each has a shape of its own.
const icons literal = `<svg class="symbols" aria-hidden="true" focusable="false">
<symbol id="well" viewBox="0 0 12 12"><circle cx="6" cy="6" r="4"/></symbol>
<symbol id="partial" viewBox="0 0 12 12"><circle cx="6" cy="6" r="3.5" fill="none" stroke="currentColor" ` +
	`stroke-width="1.5"/><path d="M6 2.5a3.5 3.5 0 0 1 0 7z"/></symbol>
<symbol id="failing" viewBox="0 0 12 12"><path d="M6 1.2 11.3 10.6H.7z"/></symbol>
<symbol id="down" viewBox="0 0 12 12"><path d="M2.6 2.6 9.4 9.4M9.4 2.6 2.6 9.4" fill="none" ` +
	`stroke="currentColor" stroke-width="2.2" stroke-linecap="round"/></symbol>
<symbol id="off" viewBox="0 0 12 12"><circle cx="6" cy="6" r="3.5" fill="none" stroke="currentColor" ` +
	`stroke-width="1.5"/></symbol>
</svg>
`

const logo literal = `<svg class="logo" viewBox="0 0 16 16" aria-hidden="true" focusable="false">` +
	`<path d="M1 3h5v3h4V3h5v3h-3v4h3v3h-5v-3H6v3H1v-3h3V6H1z"/></svg>`

// top begins a page.
func (w *writer) top(p *pages, f *frame) {
	title := f.Title + " · "
	if f.Status.Node != "" {
		title += f.Status.Node + " · "
	}
	w.put(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>%Sluice</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" type="image/svg+xml" href="%">
<style>`, title, p.asset("icon.svg"))
	w.WriteString(string(styles)) // has % of its own
	w.put(`</style>
<script defer src="%"></script>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
`, p.asset("page.js"))
	w.put(icons)
	w.put(`<header><a class="mark" href="/">` + logo + `Sluice</a>
<nav aria-label="Pages">`)
	for _, tab := range []struct{ name, path, label string }{{"services", "/", "Services"}, {"events", "/events",
		"Events"}} {
		w.put(`<a href="%"`+choose(tab.name == f.Tab, ` aria-current="page"`)+`>%</a>`, tab.path, tab.label)
	}
	w.put(`</nav>
<p class="place">`)
	if f.Status.Node != "" {
		w.put(`<b>%</b> · `, f.Status.Node)
	}
	w.put(`%</p>
<p class="updates" id="updates" role="status"></p>
</header>
<main id="main" tabindex="-1">
`, f.Status.Version)
}

// bottom ends a page.
func (w *writer) bottom() {
	w.put(`</main>
<footer>
<p>As JSON: `)
	for i, name := range []string{"status", "services", "endpoints", "events", "config", "history"} {
		w.put(choose(i > 0, ", ")+`<a href="/v1/%">%</a>`, name, name)
	}
	w.put(`. For Prometheus: <a href="/metrics">metrics</a>.</p>
<p>Rates and charts do not count what the kernel forwards by itself.</p>
</footer>
</body>
</html>
`)
}

// icon writes the symbol of a state beside its word.
func (w *writer) icon(class string) {
	w.put(`<svg class="icon" aria-hidden="true" focusable="false"><use href="#%"/></svg>`, class)
}

// state writes a state, of which colour is the least part.
func (w *writer) state(class, word string) {
	w.put(`<span class="state %">`, class)
	w.icon(class)
	w.put(`%</span>`, word)
}

// table begins a table, which scrolls by itself where the window is narrow; end it by endTable.
func (w *writer) table(of, caption string) {
	w.put(`<div class="scroll %" tabindex="0" role="region" aria-label="Table of %">
<table>
<caption class="hidden">%</caption>
<thead><tr>`, of, of, caption)
}

// heads writes the heads of columns and begins the rows; a column of numbers begins with #,
// and - marks a column that narrow windows leave out.
func (w *writer) heads(labels ...string) {
	for _, label := range labels {
		switch label[0] {
		case '#':
			w.put(`<th scope="col" class="number">%</th>`, label[1:])
		case '-':
			w.put(`<th scope="col" class="wide">%</th>`, label[1:])
		default:
			w.put(`<th scope="col">%</th>`, label)
		}
	}
	w.put("</tr></thead>\n<tbody>\n")
}

func (w *writer) endTable() { w.put("</tbody>\n</table>\n</div>\n") }

// cells writes cells of numbers.
func (w *writer) cells(numbers ...string) {
	for _, n := range numbers {
		w.put(`<td class="number">%</td>`, n)
	}
}

func (w *writer) charts(of []chart) {
	w.put(`<section aria-labelledby="minutes"><h2 id="minutes">Last 15 minutes</h2><div class="charts">`)
	for i := range of {
		w.chart(&of[i])
	}
	w.put("</div></section>\n")
}

func (w *writer) chart(c *chart) {
	w.put(`<figure class="chart`+choose(c.Bad, " bad")+`"><figcaption>% <b>%</b>`, c.Label, c.Last)
	if c.Most != "" {
		w.put(` <i>max %</i>`, c.Most)
	}
	w.put(`</figcaption>
<svg role="img" viewBox="0 0 % %" preserveAspectRatio="none" aria-labelledby="%-title %-about">`, chartWidth,
		chartHeight,
		c.ID, c.ID)
	w.put(`<title id="%-title">%</title><desc id="%-about">%</desc><path class="base" d="M0 %H%"/>`, c.ID, c.Label,
		c.ID,
		c.About, chartHeight, chartWidth)
	if c.Line != "" {
		w.put(`<path class="area" d="%"/><path class="line" d="%"/>`, c.Area, c.Line)
	}
	for _, m := range c.Marks {
		w.put(`<path class="handover" d="M% 0V%"><title>%</title></path>`, tenth(m.X), chartHeight, m.Text)
	}
	w.put("</svg></figure>\n")
}

func (w *writer) eventList(events []event, none literal) {
	if len(events) == 0 {
		w.put(none)
		return
	}
	w.put(`<ul class="events">`)
	for i := range events {
		e := &events[i]
		w.put(`<li>`)
		if e.Warning {
			w.put(`<svg class="icon failing" role="img" aria-label="Warning"><use href="#failing"/></svg>`)
		}
		w.put(`<time datetime="%" title="%">%</time> <b>%</b>`, stamp(e.Time), clock(e.Time), e.Ago, e.Reason)
		if e.Service != "" {
			w.put(" ")
			w.serviceLink(e)
		}
		if e.Note != "" {
			w.put(` <bdi class="note">%</bdi>`, e.Note)
		}
		w.put("</li>")
	}
	w.put("</ul>")
}

func (w *writer) serviceLink(e *event) {
	const most = 64
	w.put(`<a href="%"><bdi>%/%</bdi></a>`, e.Href, cut(e.Namespace, most), cut(e.Service, most))
}

func (w *writer) pager(p *pager) {
	w.put(`<nav class="pager" aria-label="Pages of the list"><span>`)
	if p.All > 0 {
		w.put(`% to % of %`, count(p.From), count(p.To), count(p.All))
	} else {
		w.put("none")
	}
	w.put("</span>")
	if p.Previous != "" {
		w.put(` <a rel="prev" href="%">Previous</a>`, p.Previous)
	}
	if p.Next != "" {
		w.put(` <a rel="next" href="%">Next</a>`, p.Next)
	}
	w.put("</nav>\n")
}

// search writes the field of a form that the key / leads to.
func (w *writer) search(label, value, hint string) {
	w.put(`<label class="hidden" for="q">%</label><input id="q" name="q" type="search" value="%" placeholder="%" `+
		`autocomplete="off" spellcheck="false" aria-keyshortcuts="/"> `, label, value, hint)
}
