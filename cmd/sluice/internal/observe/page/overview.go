package page

import (
	"cmp"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/history"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/lb"
)

const (
	latest     = 8 // events that the first page shows
	usualOrder = "trouble"
	allStates  = "all"
	wide       = "wide" // the class of columns that narrow windows leave out
)

// overview is the first page: the node, and a part of its Services.
type overview struct {
	Charts []chart
	Events []event
	Query  query
	States []stateLink
	Heads  []head
	Rows   []row
	Found  int // Services that the query is about
	Pager  pager
}

// query is what the first page is asked for.
type query struct {
	Search string
	State  string // a class of state; empty: all
	Sort   string // the key of an order
	Page   int
}

// stateLink leads to the Services in a state.
type stateLink struct {
	Class, Word string
	Count       int
	Href        string
	Current     bool
}

// head is the head of a column.
type head struct {
	Label, About string
	Class        string
	Href         string // orders by the column; empty: there is no such order
	Sorted       string // aria-sort, if the rows are in this order
}

// pager leads to other pages of the same list.
type pager struct {
	From, To, All  int
	Previous, Next string
}

// row is one Service.
type row struct {
	Name, Href          string
	Class, Word         string // of its state
	Address             string
	More                int // addresses and ports besides
	Path, Fallback      string
	Writing             bool   // rules of the kernel, for which it waits
	Wrong               string // what is ignored of it, or leads nowhere
	Eligible, Endpoints int32
	Numbers             []number
}

// lacks says why a Service is down, or partial but for clients that wait.
func lacks(s *history.Service) string {
	switch {
	case s.Endpoints == 0:
		return "it has no endpoints"
	case s.Eligible == 0:
		return "no endpoint gets new connections"
	case s.Failing > 0:
		return plural(int(s.Failing), "endpoint is", "endpoints are") + " ejected or failing its probe"
	case s.Eligible < s.Endpoints:
		return plural(int(s.Endpoints-s.Eligible), "endpoint gets", "endpoints get") + " no new connections"
	}
	return ""
}

// number is a cell.
type number struct {
	Label string // of its column
	Wide  bool   // narrow windows leave it out
	Text  string
	Zero  bool
	Note  string // what should not be: how fast it grows, or how many wait; empty: nothing
}

// The classes and words of states, in which colour is the least part.
var states = map[history.State][2]string{history.Well: {"well", "ok"}, history.Partial: {"partial", "partial"},
	history.Failing: {"failing", "failing"}, history.Down: {"down", "down"}}

var stateOrder = []history.State{history.Down, history.Failing, history.Partial, history.Well}

// orders are those of the Services: negative if a comes first. Those that are equal stay in the order of their names.
var orders = map[string]func(a, b *history.Service) int{
	usualOrder: func(a, b *history.Service) int {
		return cmp.Or(cmp.Compare(b.State(), a.State()),
			cmp.Compare(b.Rates.Failures+b.Rates.Refused, a.Rates.Failures+a.Rates.Refused))
	},
	"name": func(_, _ *history.Service) int { return 0 },
	"open": func(a, b *history.Service) int { return cmp.Compare(b.Open, a.Open) },
	"rate": func(a, b *history.Service) int {
		return cmp.Or(cmp.Compare(b.Rates.New, a.Rates.New),
			cmp.Compare(b.Rates.BytesIn+b.Rates.BytesOut, a.Rates.BytesIn+a.Rates.BytesOut), cmp.Compare(b.Open,
				a.Open))
	},
	"in":       func(a, b *history.Service) int { return cmp.Compare(b.Rates.BytesIn, a.Rates.BytesIn) },
	"out":      func(a, b *history.Service) int { return cmp.Compare(b.Rates.BytesOut, a.Rates.BytesOut) },
	"failures": func(a, b *history.Service) int { return cmp.Compare(b.Failures, a.Failures) },
	"refused":  func(a, b *history.Service) int { return cmp.Compare(b.Refused, a.Refused) },
}

// columns of the table, with the keys of their orders.
var columns = []struct{ label, about, class, order string }{
	{"State", "down: no endpoint gets new connections; failing: some have failed or were refused in the last " +
		"seconds; partial: some endpoints get none, or clients wait", "", usualOrder},
	{"Service", "namespace and name", "", "name"},
	{"Address", "the first one", wide, ""},
	{"Path", "what forwards it", wide, ""},
	{"Endpoints", "endpoints that get new connections, of all endpoints", "number", ""},
	{"Open", "connections and flows", "number", "open"},
	{"New/s", "connections and flows a second", "number wide", "rate"},
	{"In/s", "bytes a second from clients", "number wide", "in"},
	{"Out/s", "bytes a second to clients", "number wide", "out"},
	{"Failures", "attempts at endpoints that have failed, since the Service came", "number", "failures"},
	{"Refused", "clients that got no endpoint, since the Service came", "number wide", "refused"},
}

func (p *pages) overview(r *http.Request, f *frame) (body, error) {
	f.Title, f.Tab = "Services", "services"
	q := r.URL.Query()
	o := &overview{Query: query{Search: strings.TrimSpace(q.Get("q")), State: q.Get("state"), Sort: q.Get("sort")}}
	if orders[o.Query.Sort] == nil {
		o.Query.Sort = usualOrder
	}
	o.Query.Page, _ = strconv.Atoi(q.Get("page"))
	o.Charts = chartsOf(p.api.History.Node(), kinds, f.Now)
	all := p.api.Journal.After(0, journal.Size)
	o.Events = eventsOf(all[max(0, len(all)-latest):], f.Now)
	o.list(p)
	return o, nil
}

// list finds the Services that the query is about.
func (o *overview) list(p *pages) {
	services, _ := p.api.History.Now()
	matches := p.matcher(o.Query.Search)
	counts := make(map[history.State]int)
	var found []*history.Service
	for i := range services {
		s := &services[i]
		if !matches(s) {
			continue
		}
		state := s.State()
		counts[state]++
		if o.Query.State == "" || states[state][0] == o.Query.State {
			found = append(found, s)
		}
	}
	if o.Query.Sort != "name" {
		slices.SortStableFunc(found, orders[o.Query.Sort])
	}
	o.Found = len(found)
	pages := max(1, (len(found)+rowsHere-1)/rowsHere)
	o.Query.Page = max(1, min(o.Query.Page, pages))
	from := (o.Query.Page - 1) * rowsHere
	to := min(from+rowsHere, len(found))
	o.Pager = pager{From: min(from+1, to), To: to, All: len(found)}
	if o.Query.Page > 1 {
		o.Pager.Previous = o.Query.href("page", strconv.Itoa(o.Query.Page-1))
	}
	if o.Query.Page < pages {
		o.Pager.Next = o.Query.href("page", strconv.Itoa(o.Query.Page+1))
	}
	wrong := p.api.WrongBy()
	for _, s := range found[from:to] {
		r := p.row(s)
		r.Wrong = cmp.Or(strings.Join(wrong[s.Of], "; "), lacks(s))
		o.Rows = append(o.Rows, r)
	}
	o.links(counts)
}

// links makes what leads to other parts of the list.
func (o *overview) links(counts map[history.State]int) {
	all := stateLink{Word: "all", Class: allStates, Href: o.Query.href("state", ""), Current: o.Query.State == ""}
	for _, s := range stateOrder {
		all.Count += counts[s]
	}
	o.States = append(o.States, all)
	for _, s := range stateOrder {
		class, word := states[s][0], states[s][1]
		o.States = append(o.States, stateLink{class, word, counts[s], o.Query.href("state", class),
			o.Query.State == class})
	}
	for _, c := range columns {
		h := head{Label: c.label, About: c.about, Class: c.class}
		if c.order != "" {
			h.Href = o.Query.href("sort", c.order)
		}
		if c.order == o.Query.Sort {
			h.Sorted = "descending"
			if c.order == "name" {
				h.Sorted = "ascending"
			}
		}
		o.Heads = append(o.Heads, h)
	}
}

// href leads to the same list with another value of one parameter; from its first page on, unless that is the page.
func (q query) href(name, value string) string {
	v := make(url.Values)
	for key, is := range map[string]string{"q": q.Search, "state": q.State, "sort": q.Sort} {
		if is != "" && (key != "sort" || is != usualOrder) {
			v.Set(key, is)
		}
	}
	if v.Set(name, value); value == "" || name == "sort" && value == usualOrder {
		v.Del(name)
	}
	return "/?" + v.Encode()
}

// matcher returns what finds Services by words, all of which their names have; a word that is an IP address finds those
// that are served there, or have an endpoint there.
func (p *pages) matcher(search string) func(*history.Service) bool {
	words := strings.Fields(strings.ToLower(search))
	at := make([]map[lb.Name]bool, len(words))
	for i, word := range words {
		ip, err := netip.ParseAddr(word)
		if full, isFull := netip.ParseAddrPort(word); isFull == nil {
			ip, err = full.Addr(), nil
		}
		if err == nil {
			at[i] = p.servedAt(ip.Unmap())
		}
	}
	return func(s *history.Service) bool {
		if len(words) == 0 {
			return true
		}
		name := strings.ToLower(s.Of.Namespace + "/" + s.Of.Name)
		for i, word := range words {
			if !strings.Contains(name, word) && !at[i][s.Of] {
				return false
			}
		}
		return true
	}
}

// servedAt returns the Services with an address.
func (p *pages) servedAt(ip netip.Addr) map[lb.Name]bool {
	found := make(map[lb.Name]bool)
	table := p.api.LB.Table()
	for i := range table.Len() {
		s := table.At(i)
		if slices.ContainsFunc(s.Addresses, func(a lb.Address) bool { return a.Addr.Addr() == ip }) ||
			slices.ContainsFunc(s.Backends, func(b lb.Backend) bool { return b.Addr.Addr() == ip }) {
			found[s.ID.Service()] = true
		}
	}
	return found
}

func (p *pages) row(s *history.Service) row {
	state := states[s.State()]
	r := row{Name: s.Of.Namespace + "/" + s.Of.Name, Href: serviceHref(s.Of.Namespace, s.Of.Name), Class: state[0],
		Word: state[1], Path: none, Eligible: s.Eligible, Endpoints: s.Endpoints}
	each := &s.Rates
	r.Numbers = []number{open(s), perSecond(each, each.New, ""), perSecond(each,
		each.BytesIn, "B"),
		perSecond(each, each.BytesOut, "B"), tally(s.Failures, each.Failures), tally(s.Refused, each.Refused)}
	for i, c := range columns[len(columns)-len(r.Numbers):] {
		r.Numbers[i].Label, r.Numbers[i].Wide = c.label, strings.HasSuffix(c.class, wide)
	}
	if a := s.First.Addresses; len(a) > 0 {
		r.Address, r.More = a[0].Addr.String(), len(a)-1
	}
	r.More += int(s.Ports) - 1
	c, ok := p.api.Choice(s.First.ID)
	if r.Writing = c.Writing; ok {
		r.Path, r.Fallback = c.Path.String(), c.Fallback
	}
	return r
}

// open is how many connections and flows are open, and how many clients wait.
func open(s *history.Service) number {
	n := number{Text: count(s.Open), Zero: s.Open == 0}
	if s.Waiting > 0 {
		n.Note = count(s.Waiting) + " waiting"
	}
	return n
}

// perSecond is a rate as a cell.
func perSecond(r *history.Rates, n float32, unit string) number {
	switch {
	case !r.Known:
		return number{Text: none, Zero: true}
	case n == 0:
		return number{Text: "0", Zero: true}
	}
	return number{Text: short(float64(n), unit)}
}

// tally is a sum of what should not be, and how fast it grows.
func tally(sum uint64, growth float32) number {
	n := number{Text: count(sum), Zero: sum == 0}
	if growth > 0 {
		n.Note = "+" + short(float64(growth), "") + "/s"
	}
	return n
}

func serviceHref(namespace, name string) string {
	return "/service?" + url.Values{"namespace": {namespace}, "name": {name}}.Encode()
}
