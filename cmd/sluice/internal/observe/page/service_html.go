package page

import (
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

// html writes the page of a Service.
func (s *servicePage) html(w *writer, _ *frame) {
	w.put(`<div id="service">
<p class="crumbs"><a href="/">Services</a> / <bdi>%</bdi></p>
<div class="bar"><h1><bdi>%</bdi></h1>`, s.Namespace, s.Name)
	if s.Class != "" {
		w.state(s.Class, s.Word)
		w.put(`<p class="now">%</p>`, strings.Join(s.Now, " · "))
	}
	w.put("</div>\n")
	for _, wrong := range s.Wrong {
		w.put(`<p class="trouble">%</p>`, wrong)
	}
	if len(s.Charts) > 0 {
		w.charts(s.Charts)
	} else {
		w.put("<p class=\"note\">There are no charts of this Service: Services with the most traffic have " +
			"them.</p>\n")
	}
	w.put(`<section aria-labelledby="where"><h2 id="where">Where a connection goes</h2>`)
	for i := range s.Ports {
		if p := s.Ports[i].Picture; p != nil {
			p.html(w)
		}
	}
	w.put("</section>\n")
	s.portTable(w)
	s.endpointTable(w)
	s.Connections.html(w)
	if len(s.Policies) > 0 {
		s.policyTable(w)
	}
	w.put(`<section aria-labelledby="events"><h2 id="events">Recent events</h2>`)
	w.eventList(s.Events, `<p class="note">None of this Service is remembered.</p>`)
	w.put("</section>\n</div>\n")
	s.Ask.html(w, s)
}

func (p *picture) html(w *writer) {
	w.put(`<div class="scroll picture" tabindex="0" role="region" aria-label="%"><svg role="img" width="%" height="%" `+
		`viewBox="0 0 % %" aria-labelledby="%-title %-about"><title id="%-title">%</title><desc id="%-about">%</desc>
`, p.Title, p.Width, p.Height, p.Width, p.Height, p.ID, p.ID, p.ID, p.Title, p.ID, p.About)
	for _, e := range p.Edges {
		w.put(`<path class="edge %" d="%" stroke-width="%"/>`, e.Class, e.Line, tenth(e.Wide))
	}
	for i := range p.Boxes {
		b := &p.Boxes[i]
		const margin, first, second = 12, 17, 32
		w.put(`<g class="box %"><title>%</title><rect x="%" y="%" width="%" height="%" rx="5"/>`, b.Class, b.Whole,
			b.X, b.Y,
			b.Width, b.Height)
		w.put(`<text class="head" x="%" y="%">%</text><text x="%" y="%">%</text>`, b.X+margin, b.Y+first, b.Head,
			b.X+margin,
			b.Y+second, b.Text)
		if b.Share != "" {
			w.put(`<text class="share" x="%" y="%" text-anchor="end">%</text>`, b.X+b.Width-margin, b.Y+first, b.Share)
		}
		w.put("</g>\n")
	}
	w.put("</svg></div>\n")
}

func (s *servicePage) portTable(w *writer) {
	w.put(`<section aria-labelledby="ports"><h2 id="ports">Ports</h2>`)
	w.table("ports", "Ports of the Service, with their addresses and paths")
	w.heads("Port", "Addresses", "Path", "Why", "#Endpoints", "#Open", "#Chosen", "#Failures", "#Refused",
		"#From clients",
		"#To clients")
	for i := range s.Ports {
		p := &s.Ports[i]
		w.put(`<tr><th scope="row">%</th><td class="code">`, p.Label)
		const most = 10
		for _, a := range p.Addresses[:min(len(p.Addresses), most)] {
			w.put(`<div>% <span class="note">%`+choose(a.Local, ", endpoints of this node")+` %</span></div>`,
				a.Address, a.Kind,
				strings.Join(a.Sources, " "))
		}
		if len(p.Addresses) > most {
			w.put(`<div class="note">% in all</div>`, count(len(p.Addresses)))
		}
		path := p.Path.Effective
		if path == "" {
			path = "not applied yet"
		}
		w.put(`</td><td>%</td><td>%`, path, p.Path.Why)
		if p.Path.Fallback != "" {
			w.put(` <span class="warn">not %: %</span>`, p.Path.Requested, p.Path.Fallback)
		}
		n := countersOf(p.Counted, p.Kernel)
		w.put(`</td><td class="number">% / %</td><td class="number">%`, p.Eligible, p.Service.Endpoints, n.open)
		if p.Held+p.Queued > 0 {
			w.put(` <span class="warn">% held, % queued</span>`, count(p.Held), count(p.Queued))
		}
		w.put("</td>")
		w.cells(n.picks, count(p.Failures), count(p.Refused.Sum()), n.in, n.out)
		w.put("</tr>\n")
	}
	w.endTable()
	w.put(choose(s.MorePorts, "<p>There are more ports: <code>sluice services</code> lists all.</p>") + "</section>\n")
}

// counters are what user space and the kernel have counted.
type counters struct{ open, picks, in, out string }

func countersOf(c api.Counted, k *api.InKernel) counters {
	all, whole := c.Plus(k)
	out := counters{count(all.Active), count(all.Picks), bytesOf(all.BytesIn), bytesOf(all.BytesOut)}
	if whole {
		return out
	}
	if !k.Chosen && c.Picks == 0 {
		out.picks = notCounted
	}
	if c.BytesIn+c.BytesOut == 0 {
		out.in, out.out = notCounted, notCounted
	}
	return out
}

// notCounted is what the kernel does not count.
const notCounted = "–"

func (s *servicePage) endpointTable(w *writer) {
	w.put(`<section aria-labelledby="endpoints"><h2 id="endpoints">Endpoints</h2>`)
	w.table("endpoints", "Endpoints with their state and traffic")
	w.heads("State", "Endpoint", "Port", "Why", "Where", "#Weight", "#Open", "#Chosen", "#Failures", "#From clients",
		"#To clients")
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		w.put(`<tr><td>`)
		w.state(e.Class, e.State)
		w.put(`</td><th scope="row" class="code">%</th><td>%</td><td>`, e.Address, e.Port)
		if e.Reason != e.State {
			w.put(`%`, e.Reason)
		}
		if j := e.Ejection; j != nil {
			w.put(` <span class="note">ejected since %, until %; % without a success between</span>`, clock(j.Since),
				clock(j.Until), plural(int(j.Times), "ejection", "ejections"))
		}
		w.put(`</td><td>%</td>`, e.Place)
		n := countersOf(e.Counted, e.Kernel)
		w.cells(count(e.Weight), n.open, n.picks, count(e.Failures), n.in, n.out)
		w.put("</tr>\n")
	}
	if len(s.Endpoints) == 0 {
		none, other := literal("There are no endpoints."), literal("All endpoints are ready.")
		if s.Unhealthy {
			none = other
		}
		w.put(`<tr><td colspan="11" class="empty">` + none + `</td></tr>`)
	}
	w.endTable()
	other := literal("Only endpoints that are not ready")
	if s.Unhealthy {
		other = "All endpoints"
	}
	w.put(`<p><a href="%">`+other+`</a>`, s.OtherHref)
	if s.Next != "" {
		w.put(` · <a rel="next" href="%">Next page</a>`, s.Next)
	}
	w.put("</p></section>\n")
}

func (c *connections) html(w *writer) {
	w.put(`<section aria-labelledby="connections"><h2 id="connections">Connections</h2>
`)
	if c.Trouble != "" {
		w.put(`<p class="trouble">They cannot be shown now: %.</p>`, c.Trouble)
	}
	if len(c.Shown) > 0 {
		w.table("connections", "Connections and flows that are open, with their clients and endpoints")
		w.heads("Client", "Asked for", "Endpoint", "State", "Path", "#Age", "#Idle", "#From client", "#To client")
		for i := range c.Shown {
			one := &c.Shown[i]
			w.put(`<tr><th scope="row" class="code">%</th><td class="code">%</td><td class="code">%</td><td>%</td>`+
				`<td>%</td>`, one.Client, one.Address, one.Endpoint, one.State, one.Path)
			w.cells(secondsOf(one.Age), secondsOf(one.Idle), bytesIf(one.BytesIn), bytesIf(one.BytesOut))
			w.put("</tr>\n")
		}
		w.endTable()
	}
	switch {
	case c.More && len(c.Shown) > 0:
		w.put(`<p>The first % that were found. All: <code>%</code></p>`, len(c.Shown), c.Command)
	case c.More || c.Trouble != "":
		w.put(`<p>All that are open: <code>%</code></p>`, c.Command)
	case len(c.Shown) == 0:
		w.put(`<p class="note">None is open. <code>%</code> lists them on a node.</p>`, c.Command)
	default:
		w.put(`<p>The same on a node: <code>%</code></p>`, c.Command)
	}
	w.put("</section>\n")
}

// secondsOf writes how long something lasts, unless that is not known.
func secondsOf(s *float64) string {
	if s == nil {
		return notCounted
	}
	var begin time.Time
	return span(begin.Add(time.Duration(*s*float64(time.Second))), begin)
}

func bytesIf(n *uint64) string {
	if n == nil {
		return notCounted
	}
	return bytesOf(*n)
}

func (s *servicePage) policyTable(w *writer) {
	w.put(`<section aria-labelledby="policies"><h2 id="policies">Policies in force</h2>`)
	w.table("policies", "Policies of each port, and where they come from")
	w.heads("Policy", "Value", "From", "Port", "In force")
	for _, p := range s.Policies {
		w.put(`<tr><th scope="row">%</th><td>%</td><td>%</td><td>%</td><td>`, p.Name, p.Value, p.From, p.Port)
		if p.Missing != "" {
			w.put(`<span class="warn">no: %</span>`, p.Missing)
		} else {
			w.put("yes")
		}
		w.put("</td></tr>\n")
	}
	w.endTable()
	w.put("</section>\n")
}

func (a *ask) html(w *writer, of *servicePage) {
	w.put(`<section aria-labelledby="ask"><h2 id="ask">Where does a client go?</h2>
<form method="get" action="/service#ask">
<input type="hidden" name="namespace" value="%"><input type="hidden" name="name" value="%">
<label for="client">Client</label> <input id="client" name="client" value="%" placeholder="IP address, or any" `+
		`autocomplete="off" spellcheck="false">
<label for="address">asks</label> <select id="address" name="address">`, of.Namespace, of.Name, a.Client)
	for _, x := range a.Addresses {
		w.put(`<option value="%"`+choose(x.Value == a.Address, " selected")+`>%</option>`, x.Value, x.Label)
	}
	w.put("</select> <button>Explain</button></form>\n")
	if a.Mistake != "" {
		w.put(`<p class="trouble">%</p>`, a.Mistake)
	}
	if a.Answer != "" {
		w.put(`<pre tabindex="0" aria-label="The explanation">%</pre>`, a.Answer)
	}
	w.put("</section>\n")
}
