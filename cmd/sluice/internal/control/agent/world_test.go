package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/redirect"
)

// world is an agent among fakes.
type world struct {
	*Agent
	k       *kernel
	t       *testing.T
	line    int
	began   time.Time
	options []string // of command agent
	known   map[string]*inKernel
	desired map[string]*lb.Service
	hosts   map[string][]lb.Host
	checks  []netip.AddrPort
	local   []netip.Addr
	inside  []netip.Prefix
	sctp    bool // Agent.RefuseSCTP
	log     *observer.ObservedLogs
	said    []string    // by the script's goroutine while Run waits, or by Run while the script does
	added   []string    // as flows.Stale was told
	drained chan string // what drains came to
	shown   []string
	printed map[string]string // by part, what it was last
	stop    func()            // of Run; nil: it does not run
}

// begin makes another agent.
func (w *world) begin(options []string) {
	w.end()
	a, k := newAgent(w.t)
	core, log := observer.New(zap.WarnLevel)
	*w = world{t: w.t, line: w.line, Agent: a, k: k, log: log, options: options, began: time.Now(),
		shown: []string{"calls", "paths", "rules", "open", "held", "nftables", "iptables", "ipvs", "counts"},
		known: make(map[string]*inKernel), desired: make(map[string]*lb.Service), hosts: make(map[string][]lb.Host),
		printed: make(map[string]string), drained: make(chan string, 10)}
	k.intact = true
	k.stale.add = func(f lb.Frontend) { w.added = append(w.added, f.String()) }
	a.Log, a.Observe, a.Now = zap.New(core), w.observe, func() int64 { return int64(time.Since(w.began)) }
	a.LB.Outlier, a.LB.OnEjection = lb.DefaultOutlier, func(e lb.Ejection) { a.Ejected(e.Service) }
	a.RefuseSCTP = func() bool { return w.sctp }
	a.LocalAddrs = func() ([]netip.Addr, error) {
		if k.direct != nil {
			return slices.Concat(w.local, k.direct.held), nil
		}
		return slices.Clone(w.local), nil
	}
	a.NodePorts = func(local []netip.Addr) []netip.Addr {
		if w.local == nil {
			return []netip.Addr{netip.IPv4Unspecified()}
		}
		return local
	}
	for _, option := range options {
		switch name, value, _ := strings.Cut(option, "="); name {
		case "direct":
			hold(a, k)
		case "ports":
			ports, err := redirect.ParsePortRange(value)
			testbed.Check(w.t, err)
			a.Ports = ports
		case "pace":
			a.WriteEvery = w.duration(value)
		case "window":
			a.planner.window = w.duration(value)
		case "mode":
			a.Mode = w.path(value)
		case "engines":
			for _, name := range strings.Split(value, ",") {
				e := &inKernel{k: k, name: name, intact: true}
				e.asked = func() { k.note("ask-" + name) }
				w.known[name], a.Families[0].Engines[w.path(name)] = e, e
			}
		default:
			w.t.Fatalf("line %d: no option is %q", w.line, option)
		}
	}
}

// end ends Run.
func (w *world) end() {
	if w.stop != nil {
		w.stop()
	}
	w.stop = nil
}

// submit submits what is requested, and waits.
func (w *world) submit(d time.Duration) {
	w.Submit(w.wanted())
	w.wait(d)
}

// wait lets time pass, and what is to happen then. Run sees what the script has changed.
func (w *world) wait(d time.Duration) {
	w.Status()    // has a lock, which Run takes before anything else
	time.Sleep(d) // of synctest
	synctest.Wait()
}

// handOver has another agent go on with the state of this one, which it gets as text.
func (w *world) handOver() {
	w.end()
	text, err := json.Marshal(w.State())
	testbed.Check(w.t, err)
	was := *w
	w.begin(w.options)
	w.desired, w.shown, w.k.port = was.desired, was.shown, was.k.port
	w.local, w.inside, w.said = was.local, was.inside, was.said
	var state State
	testbed.Check(w.t, json.Unmarshal(text, &state))
	for _, s := range state.Sockets {
		w.k.open[s.Frontend] = s.Addr.Port()
	}
	testbed.Check(w.t, w.Adopt(state))
}

// eject has connections to an endpoint fail until it is ejected.
func (w *world) eject(s *lb.Service, endpoint netip.AddrPort) {
	for range 5 * len(s.Backends) {
		c, err := w.LB.Pick(balancer.Flow{Frontend: lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr}})
		testbed.Check(w.t, err)
		if c.Backend() == endpoint {
			c.Failed(errors.New("refused"), 0)
			continue
		}
		c.Answered()
		c.Done(nil)
	}
}

// wanted returns what is requested.
func (w *world) wanted() Desired {
	services := slices.SortedFunc(maps.Values(w.desired), func(a, b *lb.Service) int { return a.ID.Compare(b.ID) })
	return Desired{Services: lists.Of(services), Node: lb.Node{PodCIDRs: w.inside}, Checks: w.checks,
		Changes: Changes{Services: 1}, Hosts: func(node string) []lb.Host { return w.hosts[node] }}
}

func (w *world) say(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

// observe says what an attempt reports.
func (w *world) observe(at Attempt) {
	var out []string
	say := func(id lb.ID, format string, args ...any) {
		out = append(out, nameOf(id)+": "+fmt.Sprintf(format, args...))
	}
	for _, c := range at.Conflicts {
		say(c.Service, "conflict at %s%s", c.Frontend, over(c.Err == nil))
	}
	for _, f := range at.Fallbacks {
		if f.Reason == "" {
			say(f.Service, "%s requested, and it is on %s: no fallback any more", f.Requested, f.Path)
		} else {
			say(f.Service, "%s requested, falls back to %s: %s", f.Requested, f.Path, f.Reason)
		}
	}
	for _, k := range at.Kept {
		say(k.Service, "%s", k.Why)
	}
	for _, l := range at.Loops {
		say(l.Service, "endpoints that lead back: %v", l.Endpoints)
	}
	for _, p := range at.Policies {
		say(p.Service, "%s %s requested, has %s%s", p.Policy, p.Requested, p.Instead, over(p.Over))
	}
	for _, l := range at.Losers {
		var to []string
		for _, taken := range l.Taken {
			to = append(to, fmt.Sprintf("%s to %s, which has it as %s", taken.Addr, taken.Owner.Name, taken.As))
		}
		say(l.Service, "loses %s", cmp.Or(strings.Join(to, ", "), "nothing any more"))
	}
	for _, o := range at.Own {
		say(o.Service, "%s %s is the node's own", o.Kind, o.Addr)
	}
	if slices.Contains(w.shown, "changes") {
		for _, c := range at.Services {
			name := c.Service.Name
			c.Service = lb.Name{}
			out = append(out, name+": "+fields(c))
		}
	}
	slices.Sort(out)
	if at.Err != nil {
		out = append(out, "error: "+strings.NewReplacer("\n", "; ", errTaken.Error(), "in use").Replace(at.Err.Error()))
	}
	w.said = append(w.said, out...)
}

func over(is bool) string {
	if is {
		return ", is over"
	}
	return ""
}

// nameOf returns how scripts name a Service.
func nameOf(id lb.ID) string {
	if id.Port == "" {
		return id.Name
	}
	return id.Name + ":" + id.Port
}

// fields names the fields of a struct that are not zero.
func fields(of any) string {
	var out []string
	v := reflect.ValueOf(of)
	for i := range v.NumField() {
		switch name, f := v.Type().Field(i).Name, v.Field(i); {
		case f.IsZero():
		case f.Kind() == reflect.Bool:
			out = append(out, name)
		default:
			out = append(out, fmt.Sprintf("%s=%v", name, f))
		}
	}
	return strings.Join(out, " ")
}

// parts are the state of the world. What is of one command only is not compared with that of the command before.
var parts = []struct {
	name  string
	event bool
	of    func(*world) string
}{
	{"host", false, func(w *world) string { return fields(w.k.host) }}, // as steering knows it
	{"calls", true, func(w *world) string { return w.k.order() }},
	{"added", true, func(w *world) string { // to what is served, as flows.Stale was told
		out := sorted(slices.Values(w.added), func(f string) string { return f })
		w.added = nil
		return out
	}},
	{"places", true, func(w *world) string { return w.k.stale.take() }},
	{"paths", false, func(w *world) string { return w.paths() }},
	{"moves", false, func(w *world) string {
		s := w.Status()
		return fields(struct{ Moves, Unmoved uint64 }{s.Moves, s.Unmoved})
	}},
	{"rules", false, func(w *world) string { return sorted(maps.Values(w.k.entries), entryText) }},
	{"open", false, func(w *world) string {
		return sorted(maps.Keys(w.k.open), func(f lb.Frontend) string {
			if port := w.k.open[f]; port != f.Addr.Port() {
				return fmt.Sprintf("%s at %d", f, port)
			}
			return f.String()
		})
	}},
	{"held", false, func(w *world) string { // by the host
		if w.k.direct == nil {
			return ""
		}
		return sorted(slices.Values(w.k.direct.held), netip.Addr.String)
	}},
	{"table", false, func(w *world) string { return sorted(slices.Values(w.LB.Table().Services()), serviceText) }},
	{"nftables", false, func(w *world) string { return w.known["nftables"].has() }},
	{"iptables", false, func(w *world) string { return w.known["iptables"].has() }},
	{"ipvs", false, func(w *world) string { return w.known["ipvs"].has() }},
	{"clients", false, func(w *world) string { return w.clients() }},
	{"kernel", false, func(w *world) string { return sorted(slices.Values(w.State().Kernel), nameOf) }},
	{"counts", false, func(w *world) string {
		s := w.Status()
		return fields(struct {
			Looping, Drained, Conflicts, Fallbacks, Policies int
			NoLocal                                          [2]NoLocal
			Failures, Repairs                                uint64
			Pending                                          int
			Queued, Unhealthy                                bool
			Dirty                                            int // rows that each change looks at
		}{s.Looping, s.Drained, s.Conflicts, s.Fallbacks, s.Policies, s.NoLocal, s.Failures, s.Repairs,
			s.ServicesPending, !s.QueuedSince.IsZero(), !s.Healthy(time.Now()), len(w.planner.dirty)})
	}},
}

// holds checks that the agent knows which sockets are open.
func (w *world) holds() {
	for f, so := range w.sockets.open {
		if w.k.open[f] != so.Addr.Port() {
			w.t.Errorf("line %d: %s is at %s for the agent, and open at %d", w.line, f, so.Addr, w.k.open[f])
		}
	}
	if len(w.sockets.open) != len(w.k.open) {
		w.t.Errorf("line %d: sockets are open: %v, for the agent: %v", w.line, w.k.open, w.sockets.open)
	}
}

// changed returns the parts that are shown and are not as they were.
func (w *world) changed() (lines []string) {
	for _, part := range parts {
		is := part.of(w)
		if is != w.printed[part.name] && slices.Contains(w.shown, part.name) {
			lines = append(lines, part.name+": "+cmp.Or(is, "none"))
		}
		if w.printed[part.name] = is; part.event {
			w.printed[part.name] = ""
		}
	}
	return lines
}

// sorted returns texts of all in a line.
func sorted[T any](all func(func(T) bool), text func(T) string) string {
	var out []string
	for one := range all {
		out = append(out, text(one))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// serviceText returns the addresses of a Service, and the endpoints that get new connections.
func serviceText(s *lb.Service) string {
	out := nameOf(s.ID)
	for _, a := range s.Addresses {
		out += " " + a.Addr.String()
	}
	out += " to"
	for _, b := range s.Eligible() {
		out += " " + endpointText(b.Addr)
	}
	for _, b := range s.Backends {
		if b.Drained && !b.Serving {
			out += " not " + endpointText(b.Addr)
		}
	}
	if s.Masquerade {
		out += " masqueraded"
	}
	return out
}

func endpointText(at netip.AddrPort) string {
	if ip := at.Addr().As4(); at.Port() == 53 && [3]byte(ip[:3]) == [3]byte{10, 244, 0} {
		return strconv.Itoa(int(ip[3]))
	}
	return at.String()
}

// entryText returns what becomes of packets to a frontend.
func entryText(e redirect.Entry) string {
	out := fmt.Sprint(e.Action, " ", e.Frontend)
	if e.DropOutside {
		out += " inside"
	}
	if len(e.Sources) > 0 {
		out += fmt.Sprint(" from ", e.Sources)
	}
	return out
}

func (w *world) paths() string {
	return sorted(maps.Values(w.desired), func(s *lb.Service) string {
		c, known := w.Choice(s.ID)
		out := nameOf(s.ID) + " " + c.Path.String()
		if known && c.Reason != ByMode {
			out += " (" + c.Reason.String() + ")"
		}
		if c.Writing {
			out += " waits"
		}
		return out
	})
}

// clients returns who is known to each path, as clients has it.
func (w *world) clients() string {
	text := func(path string, of func(*lb.Service) []lb.Client) string {
		return sorted(maps.Values(w.desired), func(s *lb.Service) string {
			out := path
			for _, c := range of(s) {
				out += fmt.Sprintf(" %d=%s@%v", c.Addr.As4()[3], endpointText(c.Backend), time.Duration(c.LastUsed))
			}
			return out
		})
	}
	out := text("userspace", func(s *lb.Service) []lb.Client { return w.LB.Memory().ServiceClients(s.ID) })
	for _, name := range slices.Sorted(maps.Keys(w.known)) {
		out += "; " + text(name, func(s *lb.Service) []lb.Client { return w.known[name].clients[s.ID] })
	}
	return out
}
