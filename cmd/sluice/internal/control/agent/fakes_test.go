package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/redirect"
)

// kernel stands in for sockets and steering, and checks after every call what the
// agent promises: whatever is steered has a socket, and a place in the table.
type kernel struct {
	t       *testing.T
	lb      *balancer.Balancer
	open    map[lb.Frontend]uint16
	former  map[lb.Frontend]uint16 // ports before Move, until Settle
	steered map[lb.Frontend]uint16
	entries map[lb.Frontend]redirect.Entry
	host    redirect.Host
	mu      sync.Mutex // guards calls and told: engines may write beside
	calls   []string
	tables  int             // that UDP was told of, and SCTP is not yet
	told    []lb.Delta      // what engines are to write, as Forwarding was told, until they do
	taken   map[uint16]bool // ports that others have
	port    uint16
	intact  bool                 // what Verify finds
	fail    error                // what Sync returns, after it has done its work
	proxies []netip.AddrPort     // of TCP
	direct  *holder              // nil if packets are steered
	flowing map[lb.Frontend]bool // these have flows
	stale   stale
	moved   func() // called when a path has started or stopped forwarding
}

// errTaken is what this system says of a port that another program has.
var errTaken = func() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	_, err = net.Listen("tcp", l.Addr().String())
	return err
}()

func newAgent(t *testing.T) (*Agent, *kernel) {
	k := &kernel{t: t, lb: new(balancer.Balancer), open: map[lb.Frontend]uint16{}, former: map[lb.Frontend]uint16{},
		steered: map[lb.Frontend]uint16{}, entries: map[lb.Frontend]redirect.Entry{}, taken: map[uint16]bool{},
		port: 20000}
	k.proxies = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:1")}
	servers := map[lb.Protocol]Sockets{lb.TCP: streams{k}, lb.UDP: k, lb.SCTP: associations{k}}
	a := New(Config{LB: k.lb, Servers: servers, Proxy: proxy{k},
		Moving: &Moving{k.Move, k.Flows, k.Leave, k.Settle},
		Stale:  &k.stale, Forwarding: k.forwarding,
		Families: [2]Family{{Steer: &Steering{k.Sync, k.Verify}, Bind: netip.IPv4Unspecified()}},
		Now:      func() int64 { return 0 }, Log: zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))})
	a.tcpPort = 1
	return a, k
}

// proxy is the proxy ports of TCP of a kernel.
type proxy struct{ k *kernel }

func (p proxy) ListenSteered(at netip.AddrPort) (netip.AddrPort, error) {
	if at.Port() == 0 {
		p.k.port++
		at = netip.AddrPortFrom(at.Addr(), p.k.port)
	}
	if p.k.taken[at.Port()] && at.Addr().Is4() || slices.Contains(p.k.proxies, at) {
		return netip.AddrPort{}, errTaken
	}
	p.k.proxies = append(p.k.proxies, at)
	return at, nil
}

func (p proxy) Unlisten(at netip.AddrPort) {
	i := slices.Index(p.k.proxies, at)
	if i < 0 {
		p.k.t.Fatalf("%s is closed, which is not open", at)
	}
	p.k.proxies = slices.Delete(p.k.proxies, i, i+1)
}

func (p proxy) Steered() []netip.AddrPort { return slices.Clone(p.k.proxies) }

// associations is the SCTP side of a kernel, which is as UDP's but told of tables
// after it.
type associations struct{ *kernel }

func (a associations) TableChanged() {
	if a.tables--; a.tables != 0 {
		a.t.Fatal("SCTP has the new table before UDP")
	}
}

// streams is the TCP side of a kernel, which is not told of tables.
type streams struct{ *kernel }

func (streams) TableChanged() {}

func (k *kernel) forwarding(d *lb.Delta) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = append(k.told, *d)
}

// begins wants Forwarding to have been told of what an engine is about to write.
func (k *kernel) begins(d *lb.Delta) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.told, func(t lb.Delta) bool {
		return slices.Equal(t.Added, d.Added) && slices.Equal(t.Removed, d.Removed) && len(t.Changed) == len(d.Changed)
	})
	if i < 0 {
		k.t.Errorf("an engine writes what was not announced: %+v", *d)
		return
	}
	k.told = slices.Delete(k.told, i, i+1)
}

// note notes a call.
func (k *kernel) note(call string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, call)
}

func (k *kernel) check(call string) {
	k.t.Helper()
	k.note(call)
	if k.direct != nil {
		k.direct.check(call)
	}
	for f, port := range k.steered {
		if f.Protocol != lb.TCP && k.open[f] != port && k.former[f] != port {
			k.t.Fatalf("after %s: %s is steered to port %d, where no socket is; calls %v", call, f, port, k.calls)
		}
		if _, _, ok := k.lb.Table().Lookup(f); !ok {
			k.t.Fatalf("after %s: %s is steered but not in the table; calls %v", call, f, k.calls)
		}
	}
	for f := range k.open {
		if _, _, ok := k.lb.Table().Lookup(f); !ok && f.Protocol == lb.TCP {
			k.t.Fatalf("after %s: node port %s is open but not in the table; calls %v", call, f, k.calls)
		}
	}
}

func (k *kernel) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	port := addr.Port()
	if port == 0 {
		k.port++
		port = k.port
	}
	for other, taken := range k.open {
		if taken == port && other.Protocol == f.Protocol && f.Protocol != lb.TCP && k.direct == nil {
			return netip.AddrPort{}, errTaken
		}
	}
	if k.taken[port] {
		return netip.AddrPort{}, errTaken
	}
	if _, ok := k.open[f]; ok {
		k.t.Fatalf("%s is opened twice", f)
	}
	k.open[f] = port
	k.check("listen")
	return netip.AddrPortFrom(addr.Addr(), port), nil
}

func (k *kernel) Unlisten(f lb.Frontend) {
	if _, ok := k.open[f]; !ok {
		k.t.Fatalf("%s is closed, which is not open", f)
	}
	delete(k.open, f)
	k.check("unlisten")
}

func (k *kernel) Move(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	before := k.open[f]
	delete(k.open, f)
	k.former[f] = before
	got, err := k.Listen(f, addr)
	if err != nil {
		k.open[f] = before
		delete(k.former, f)
	}
	return got, err
}

func (k *kernel) Leave(f lb.Frontend) {
	if k.steered[f] != k.open[f] {
		k.t.Fatalf("%s leaves port %d, where it is still steered to; calls %v", f, k.former[f], k.calls)
	}
	k.check("leave")
}

func (k *kernel) Flows(f lb.Frontend) int {
	if k.flowing[f] {
		return 1
	}
	return 0
}

func (k *kernel) Settle(f lb.Frontend) {
	delete(k.former, f)
	k.check("settle")
}

func (k *kernel) TableChanged() { k.tables++; k.check("table") }

func (k *kernel) Sync(_ context.Context, u redirect.Update) error {
	if k.host = u.Host; u.Whole {
		clear(k.entries)
	}
	for _, e := range u.Remove {
		if _, ok := k.entries[e.Frontend]; !ok {
			k.t.Fatalf("%s is removed, which is not there", e.Frontend)
		}
		delete(k.entries, e.Frontend)
	}
	clear(k.steered)
	for _, e := range u.Add {
		if was, ok := k.entries[e.Frontend]; ok {
			k.t.Fatalf("%s is added as %+v and is there as %+v", e.Frontend, e, was)
		}
		k.entries[e.Frontend] = e
	}
	for f, e := range k.entries {
		_, owned, ok := k.lb.Table().Lookup(f)
		if is := ok && owned.Addr == f.Addr && owned.Kind == lb.ClusterIP; e.ClusterIP != is {
			k.t.Fatalf("%s is steered as a cluster IP: %t, want %t", f, e.ClusterIP, is)
		}
		if e.Action == redirect.Redirect && f.Protocol == lb.TCP {
			e.Port = u.Host.TCPPort
		}
		if e.Action == redirect.Redirect {
			k.steered[f] = e.Port
		}
	}
	k.check("steer")
	if k.moved != nil {
		k.moved()
	}
	return k.fail
}

func (k *kernel) Verify(context.Context) (bool, error) { return k.intact, k.fail }

func (k *kernel) order() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := strings.Join(k.calls, " ")
	k.calls = nil
	return s
}

// holder stands in for addresses.Set, and checks that an address is there before
// its sockets are and goes after them.
type holder struct {
	k    *kernel
	held []netip.Addr
	fail error
}

func (h *holder) Sync(_ context.Context, want []netip.Addr) error {
	want = slices.Clone(want)
	slices.SortFunc(want, netip.Addr.Compare)
	want = slices.Compact(want)
	if !slices.Equal(want, h.held) {
		h.k.note("address")
	}
	h.held = want
	h.check("address")
	return h.fail
}

func (h *holder) Verify(context.Context) (bool, error) { return h.k.intact, h.fail }

func (h *holder) Held() []netip.Addr { return h.held }

// check wants every open socket that is not on a node port to have its address.
func (h *holder) check(call string) {
	h.k.t.Helper()
	for f := range h.k.open {
		_, owned, ok := h.k.lb.Table().Lookup(f)
		nodePort := ok && owned.Kind == lb.NodePort
		if !nodePort && !slices.Contains(h.held, f.Addr.Addr()) {
			h.k.t.Fatalf("after %s: a socket is open on %s, which the host does not hold; calls %v", call, f, h.k.calls)
		}
	}
}

// inKernel stands in for an engine, which may take long to write.
type inKernel struct {
	k        *kernel
	name     string
	services map[lb.ID]*lb.Service // as passed; nil at the start and after an error
	intact   bool
	asked    func() // whether it is
	leftover bool
	takes    time.Duration

	mu      sync.Mutex // guards the following
	fail    error
	made    map[lb.ID]*lb.Service
	writing bool

	clients map[lb.ID][]lb.Client
	forgets error // what Remember returns
}

func (e *inKernel) Clients(_ context.Context, s *lb.Service, _ int64) ([]lb.Client, error) {
	return e.clients[s.ID], nil
}

func (e *inKernel) Leftover(context.Context) (bool, error) { return e.leftover, nil }

func (e *inKernel) Remember(_ context.Context, s *lb.Service, clients []lb.Client) error {
	if e.forgets == nil {
		e.clients = map[lb.ID][]lb.Client{s.ID: clients}
	}
	return e.forgets
}

func (e *inKernel) Sync(ctx context.Context, d lb.Delta, _ lb.Node) error {
	e.mu.Lock()
	if e.writing {
		e.k.t.Errorf("%s: two Syncs run at the same time", e.name)
	}
	e.writing = true
	e.mu.Unlock()
	e.k.begins(&d)
	e.take(d)
	if e.takes > 0 {
		select {
		case <-time.After(e.takes): // of synctest
		case <-ctx.Done():
		}
	}
	e.mu.Lock()
	err := cmp.Or(e.fail, ctx.Err())
	if e.writing = false; err == nil {
		e.made = maps.Clone(e.services)
	} else {
		e.services = nil
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	e.k.note(fmt.Sprint(e.name, len(e.services)))
	if e.k.moved != nil {
		e.k.moved()
	}
	return nil
}

// take notes what is passed.
func (e *inKernel) take(d lb.Delta) {
	if d.Whole {
		e.services = make(map[lb.ID]*lb.Service)
	} else if e.services == nil {
		e.k.t.Errorf("%s: a change of what it does not know", e.name)
		return
	}
	for _, s := range d.Removed {
		if e.services[s.ID] == nil {
			e.k.t.Errorf("%s: %s is removed, which is not there", e.name, s.ID)
		}
		delete(e.services, s.ID)
	}
	for _, s := range d.Added {
		if e.services[s.ID] != nil {
			e.k.t.Errorf("%s: %s is added twice", e.name, s.ID)
		}
		e.services[s.ID] = s
	}
	for _, c := range d.Changed {
		if e.services[c.New.ID] != c.Old {
			e.k.t.Errorf("%s: %s changes from what it was not", e.name, c.New.ID)
		}
		e.services[c.New.ID] = c.New
	}
	owners := make(map[lb.Frontend]lb.ID)
	for _, s := range e.services {
		for _, a := range s.Addresses {
			f := lb.Frontend{Protocol: s.Protocol, Addr: a.Addr}
			if other, ok := owners[f]; ok { // nf_tables would refuse it
				e.k.t.Errorf("%s: %s is of %s and of %s", e.name, f, other, s.ID)
			}
			owners[f] = s.ID
		}
	}
}

// serves reports whether it forwards what clients ask for at a frontend.
func (e *inKernel) serves(f lb.Frontend) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	is := func(a lb.Address) bool { return a.Addr == f.Addr }
	for _, s := range e.made {
		if s.Protocol == f.Protocol && slices.ContainsFunc(s.Addresses, is) {
			return true
		}
	}
	return false
}

// has returns what it forwards, in a line.
func (e *inKernel) has() string {
	if e == nil {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return sorted(maps.Values(e.made), serviceText)
}

func (e *inKernel) Verify(context.Context) (bool, error) {
	if e.asked != nil {
		e.asked()
	}
	return e.intact, nil
}

// stale notes what an agent says of places.
type stale struct {
	add    func(lb.Frontend) // may be nil
	places map[lb.Frontend]flows.Place
}

func (s *stale) Change(f lb.Frontend, _, now flows.Place, _ bool) {
	if s.places == nil {
		s.places = make(map[lb.Frontend]flows.Place)
	}
	s.places[f] = now
}

func (s *stale) Add(list []lb.Frontend) {
	for _, f := range list {
		if s.add != nil {
			s.add(f)
		}
	}
}

func (s *stale) Reconcile(*flows.Node, func(lb.Frontend) bool) bool { return false }

// take returns the places since the last call, in a line.
func (s *stale) take() string {
	var out []string
	for _, f := range slices.SortedFunc(maps.Keys(s.places),
		func(a, b lb.Frontend) int { return b.Addr.Compare(a.Addr) }) {
		p := s.places[f]
		text := f.Addr.String() + " " + [...]string{"nothing", "refused", "proxy", "socket", "kernel", "ipvs"}[p.Kind]
		if p.Port != 0 {
			text += fmt.Sprintf(" port %d", p.Port)
		}
		if p.AtSocket {
			text += " at-socket"
		}
		if len(p.Endpoints) > 0 {
			text += fmt.Sprintf(" endpoints %d", len(p.Endpoints))
		}
		out = append(out, text)
	}
	s.places = nil
	return strings.Join(out, ", ")
}
