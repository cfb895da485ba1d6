package page

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/history"
	"github.com/sluice-lb/sluice/lb"
)

const (
	// ownEvents is how many events the page of a Service shows, asked how many addresses can be asked about there, and
	// shownConnections how many connections it shows.
	ownEvents        = 20
	asked            = 50
	shownConnections = 50

	// lookTime is how long connections are looked for: those of a Service may be few among very many.
	lookTime = 100 * time.Millisecond
)

// servicePage is the page of one Service.
type servicePage struct {
	Namespace, Name string
	Class, Word     string   // of its state
	Now             []string // what it does, in words
	Wrong           []string // what is ignored of it, or leads nowhere
	Ports           []port
	MorePorts       bool
	Charts          []chart
	Endpoints       []endpoint
	Unhealthy       bool   // only those that are not ready
	OtherHref       string // leads to all of them, or to those only
	Next            string // page of endpoints
	Policies        []policyRow
	Events          []event
	Connections     connections
	Ask             ask
}

// port is a port of the Service in one address family.
type port struct {
	api.Service
	Label   string
	Picture *picture
}

// endpoint is a row of the table.
type endpoint struct {
	api.Endpoint
	Class string // of its state
	Port  string
	Place string // local, and hints
}

// policyRow is a policy of a port.
type policyRow struct {
	Port string
	api.Policy
}

// connections are those of the Service that are open.
type connections struct {
	Shown   []api.Connection
	More    bool   // there may be others
	Trouble string // why they cannot be shown
	Command string // that lists all
}

func (c *connections) look(p *pages, of lb.Name) {
	var err error
	if c.Shown, c.More, err = p.api.Connections(of, shownConnections, lookTime); err != nil {
		c.Trouble = err.Error()
	}
	c.Command = "sluice connections " + shellWord(of.Namespace+"/"+of.Name)
}

// ask is the form that explains what becomes of a client.
type ask struct {
	Addresses       []askAddress
	Client, Address string
	Answer, Mistake string
}

type askAddress struct{ Value, Label string }

func (p *pages) service(r *http.Request, f *frame) (body, error) {
	q := r.URL.Query()
	name := lb.Name{Namespace: q.Get("namespace"), Name: q.Get("name")}
	f.Title, f.Tab = name.Namespace+"/"+name.Name, "services"
	s := &servicePage{Namespace: name.Namespace, Name: name.Name, Unhealthy: q.Has("unhealthy")}
	of := url.Values{"namespace": {name.Namespace}, "name": {name.Name}, "limit": {strconv.Itoa(rows)}}
	ports, err := api.Get[api.List[api.Service]](p.api, "services", of)
	if err != nil {
		return nil, err
	}
	if name.Name == "" || len(ports.Items) == 0 {
		return nil, errNotFound
	}
	s.MorePorts, s.Wrong = ports.Continue != "", ports.Items[0].Wrong
	s.summary(p, name)
	if samples, ok := p.api.History.Service(name); ok {
		s.Charts = chartsOf(samples, kinds[:len(kinds)-1], f.Now)
	}
	if err := s.list(p, of, q); err != nil {
		return nil, err
	}
	for i := range ports.Items {
		s.addPort(&ports.Items[i])
	}
	s.draw(p, &f.Status)
	events, err := api.Get[api.Events](p.api, "events", url.Values{"namespace": of["namespace"],
		"name": of["name"], "limit": {strconv.Itoa(ownEvents)}})
	if err != nil {
		return nil, err
	}
	s.Events = eventsOf(events.Items, f.Now)
	s.Connections.look(p, name)
	s.Ask.answer(p, q)
	return s, nil
}

// summary says how the Service does.
func (s *servicePage) summary(p *pages, name lb.Name) {
	services, _ := p.api.History.Now()
	at, ok := slices.BinarySearchFunc(services, name, func(s history.Service, n lb.Name) int { return s.Of.Compare(n) })
	if !ok { // it came in this second
		return
	}
	state := states[services[at].State()]
	s.Class, s.Word = state[0], state[1]
	is := &services[at]
	s.Now = []string{count(is.Open) + " open"}
	if each := &is.Rates; each.Known {
		s.Now = append(s.Now, short(float64(each.New), "")+" new/s", short(float64(each.BytesIn),
			"B")+"/s from clients",
			short(float64(each.BytesOut), "B")+"/s to clients")
	}
}

func (s *servicePage) addPort(of *api.Service) {
	one := port{Service: *of, Label: portLabel(&of.ID)}
	for _, policy := range of.Policies {
		s.Policies = append(s.Policies, policyRow{one.Label, policy})
	}
	for _, a := range of.Addresses {
		if len(s.Ask.Addresses) < asked {
			s.Ask.Addresses = append(s.Ask.Addresses, askAddress{of.Protocol + " " + a.Address,
				a.Address + " " + of.Protocol + ", " + a.Kind})
		}
	}
	s.Ports = append(s.Ports, one)
}

// portLabel names a port within its Service.
func portLabel(id *api.ID) string {
	return strings.TrimSpace(id.Port + " " + id.Protocol + " " + id.Family)
}

// classes of the states of endpoints.
var classes = map[string]string{api.Ready: "well", api.NotReady: "off", api.Terminating: "partial",
	api.Ejected: "failing", api.CheckFailing: "failing", api.Maintenance: "off", api.Drained: "off",
	api.Loop: "failing", api.Gone: "off"}

// list makes the table of endpoints.
func (s *servicePage) list(p *pages, of, q url.Values) error {
	v := url.Values{"namespace": of["namespace"], "name": of["name"], "limit": of["limit"]}
	if s.Unhealthy {
		v.Set("unhealthy", "")
	}
	if q.Get("continue") != "" {
		v.Set("continue", q.Get("continue"))
	}
	list, err := api.Get[api.List[api.Endpoint]](p.api, "endpoints", v)
	if err != nil {
		return err
	}
	for _, e := range list.Items {
		one := endpoint{Endpoint: e, Class: classes[e.State], Port: portLabel(&e.Service)}
		var place []string
		if e.Local {
			place = append(place, "this node")
		}
		if e.NodeHint != "" {
			place = append(place, "node hint: "+e.NodeHint)
		}
		if e.ZoneHint != "" {
			place = append(place, "zone hint: "+e.ZoneHint)
		}
		one.Place = strings.Join(place, ", ")
		s.Endpoints = append(s.Endpoints, one)
	}
	href := serviceHref(s.Namespace, s.Name)
	s.OtherHref = href
	if !s.Unhealthy {
		s.OtherHref += "&unhealthy=1"
	}
	if list.Continue != "" {
		if s.Unhealthy {
			href += "&unhealthy=1"
		}
		s.Next = href + "&" + url.Values{"continue": {list.Continue}}.Encode()
	}
	return nil
}

// answer explains what becomes of a client, if that is asked.
func (a *ask) answer(p *pages, q url.Values) {
	a.Client, a.Address = strings.TrimSpace(q.Get("client")), q.Get("address")
	protocol, address, ok := strings.Cut(a.Address, " ")
	if !ok {
		return
	}
	v := url.Values{"address": {address}, "protocol": {protocol}}
	if a.Client != "" {
		v.Set("client", a.Client)
	}
	answers, err := api.Get[api.List[api.Explanation]](p.api, "explain", v)
	switch {
	case err != nil:
		a.Mistake = err.Error()
	case len(answers.Items) > 0:
		a.Answer = answers.Items[0].Text
	}
}

// shellWord quotes text as one word of a POSIX shell.
func shellWord(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._/:", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
