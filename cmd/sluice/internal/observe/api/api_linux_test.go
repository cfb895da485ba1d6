package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// hostile is a name that no API server would accept, and that harms a terminal which obeys it.
const hostile = "x\x1b[31m\n\u202e<script>"

// sourcesOf returns sources of many Services with two endpoints each, of which the first has so many.
func sourcesOf(t *testing.T, services, endpoints int) *Sources {
	t.Helper()
	var all []*lb.Service
	for i := range services {
		name := fmt.Sprintf("s%05d", i)
		if i == 1 {
			name = hostile
		}
		s := &lb.Service{ID: lb.ID{Namespace: fmt.Sprintf("n%d", i%2), Name: name, Protocol: lb.TCP}}
		s.Addresses = []lb.Address{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}),
			80)}}
		n := 2
		if i == 0 {
			n = endpoints
		}
		for e := range n {
			s.Backends = append(s.Backends, lb.Backend{Ready: e%2 == 0, Weight: 1,
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(e >> 8), byte(e)}), 8080)})
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *lb.Service) int { return a.ID.Compare(b.ID) })
	table, err := lb.NewTable(all, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	b := new(balancer.Balancer)
	b.Update(table)
	j := journal.New(zap.NewNop())
	t.Cleanup(j.Close)
	wrong := func() []conditions.Condition {
		return []conditions.Condition{{Reason: conditions.ManifestRejected, Text: "a.yaml:6: it is wrong"}}
	}
	return &Sources{Wrong: wrong, LB: b, Now: func() int64 { return 1e18 }, Mode: agent.Userspace, Journal: j,
		Choice: func(lb.ID) (agent.Choice, bool) {
			return agent.Choice{Path: agent.Userspace, Why: "--proxy-mode"}, true
		},
		Status: func() Status { return Status{Version: "test", PacketFilter: &Chosen{Name: "nftables"}} }}
}

// serve serves sources at a socket of the test's.
func serve(t *testing.T, s *Sources) *Client {
	t.Helper()
	return serveHandler(t, s.Handler())
}

func serveHandler(t *testing.T, h http.Handler) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", "api.sock")
	l, err := Listen(path, false)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket's file is left over: %v", err)
		}
	})
	return NewClient(path)
}

// TestPages: lists of any length come in pages, whole and in order, and filters hold across them.
func TestPages(t *testing.T) {
	const services, endpoints = 1203, 2500
	c := serve(t, sourcesOf(t, services, endpoints))
	var page List[Service]
	if err := c.Get(t.Context(), "services", nil, &page); err != nil || len(page.Items) != usualPage ||
		page.Continue == "" {
		t.Fatalf("the first page has %d items, continues at %q, %v", len(page.Items), page.Continue, err)
	}
	all, err := All[Service](t.Context(), c, "services", nil)
	if err != nil || len(all) != services {
		t.Fatalf("there are %d Services, %v", len(all), err)
	}
	if s := all[0]; s.Name != "s00000" || s.Endpoints != endpoints || s.Eligible != endpoints/2 ||
		s.Path.Effective != "userspace" ||
		s.Addresses[0].Address != "10.96.0.0:80" || s.Addresses[0].Kind != "cluster IP" {
		t.Errorf("the first Service is %+v", s)
	}
	for i := 1; i < len(all); i++ {
		if all[i-1].Namespace > all[i].Namespace || all[i-1].Namespace == all[i].Namespace &&
			all[i-1].Name >= all[i].Name {
			t.Fatalf("%s/%q comes after %s/%q", all[i].Namespace, all[i].Name, all[i-1].Namespace, all[i-1].Name)
		}
	}
	each, err := All[Endpoint](t.Context(), c, "endpoints", url.Values{"limit": {"7"}, "namespace": {"n0"}})
	if want := endpoints + 2*(services/2); err != nil || len(each) != want {
		t.Errorf("there are %d endpoints of Services in n0, want %d, %v", len(each), want, err)
	}
	bad, err := All[Endpoint](t.Context(), c, "endpoints", url.Values{"unhealthy": {""}, "namespace": {"n0"},
		"name": {"s00000"}})
	if err != nil || len(bad) != endpoints/2 || bad[0].State != NotReady || bad[0].Reason != "not ready" ||
		bad[0].Eligible {
		t.Errorf("there are %d that are not ready, of which the first is %+v, %v", len(bad), bad[0], err)
	}
	// Of many that are well a page has none, and goes on.
	well := sourcesOf(t, mostLooked*2/3, 1)
	for _, service := range well.LB.Table().Services() {
		service.Backends = service.Backends[:1]
	}
	table, err := lb.NewTable(well.LB.Table().Services(), lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	well.LB = new(balancer.Balancer)
	well.LB.Update(table)
	long, q := serve(t, well), url.Values{"unhealthy": {"true"}}
	var none List[Endpoint]
	if err := long.Get(t.Context(), "endpoints", q, &none); err != nil || len(none.Items) != 0 || none.Continue == "" {
		t.Errorf("where all is well a page has %d, going on at %q, %v", len(none.Items), none.Continue, err)
	}
	if all, err := All[Endpoint](t.Context(), long, "endpoints", q); err != nil || len(all) != 0 {
		t.Errorf("where all is well there are %d, %v", len(all), err)
	}
	named, err := All[Service](t.Context(), c, "services", url.Values{"name": {hostile}})
	if err != nil || len(named) != 1 || named[0].Name != hostile {
		t.Errorf("the hostile Service is %+v, %v", named, err)
	}
}

// TestCursor: a page goes on where the Service that it was to begin with has gone meanwhile.
func TestCursor(t *testing.T) {
	s := sourcesOf(t, 10, 2)
	c := serve(t, s)
	var page List[Service]
	q := url.Values{"limit": {"4"}, "namespace": {"n0"}}
	if err := c.Get(t.Context(), "services", q, &page); err != nil || len(page.Items) != 4 {
		t.Fatalf("%+v, %v", page, err)
	}
	left := slices.DeleteFunc(s.LB.Table().Services(), func(s *lb.Service) bool { return s.Name == "s00008" })
	table, err := lb.NewTable(left, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	s.LB.Update(table)
	q.Set("continue", page.Continue)
	page = List[Service]{}
	if err := c.Get(t.Context(), "services", q, &page); err != nil || len(page.Items) != 0 || page.Continue != "" {
		t.Errorf("the last page is %+v, %v", page, err)
	}
}

// TestRequests: what is wrong with a request is said, and nothing can be written.
func TestRequests(t *testing.T) {
	s := sourcesOf(t, 3, 2)
	for i := range 5 {
		s.Journal.Remember(Event{Reason: "Test", Namespace: "n0", Service: fmt.Sprint("s", i%2)})
	}
	c := serve(t, s)
	for resource, want := range map[string]string{
		"services?limit=x":                     "limit \"x\" is not a number",
		"services?continue=x":                  "continue \"x\" is none that was answered",
		"services?namespce=a":                  "there is no parameter \"namespce\" here",
		"endpoints?limit=100000":               "limit \"100000\" is not a number from 0 to 1000",
		"explain":                              "what is to be explained",
		"explain?address=x":                    "\"x\" is not an address",
		"explain?address=1.2.3.4:5&protocol=x": "\"x\" is not a protocol",
		"explain?client=x&name=a":              "client \"x\" is not an IP address",
		"explain?namespace=n0&name=none":       "there is no Service n0/none",
		"nothing":                              "there is no GET /v1/nothing",
	} {
		name, query, _ := strings.Cut(resource, "?")
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		var answer any
		if err := c.Get(t.Context(), name, q, &answer); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", resource, err, want)
		}
	}
	resp, err := c.http.Post("http://sluice/v1/status", "application/json", strings.NewReader("{}"))
	if err != nil || resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a POST is answered by %+v, %v", resp, err)
	}
	_ = resp.Body.Close()
	var index struct{ Resources []string }
	if err := c.Get(t.Context(), "", nil, &index); err == nil && len(index.Resources) > 0 {
		t.Errorf("the index is at /v1/, too: %+v", index)
	}
	for query, want := range map[string]string{"": "12345", "after=3": "45", "limit=2": "45", "name=s1": "24",
		"name=s0&limit=1": "5",
		"namespace=n1":    "", "after=9000": ""} {
		q, _ := url.ParseQuery(query)
		var page List[Event]
		err := c.Get(t.Context(), "events", q, &page)
		got := ""
		for _, e := range page.Items {
			got += fmt.Sprint(e.Number)
		}
		if err != nil || got != want {
			t.Errorf("events?%s are %s, want %s, %v", query, got, want, err)
		}
	}
}

// TestWait: a request waits for the next event and no longer than it says, and knows where others have begun anew.
func TestWait(t *testing.T) {
	s := sourcesOf(t, 1, 1)
	c := serve(t, s)
	s.Journal.Remember(Event{Reason: "First"})
	ask := func(query string) (page Events) {
		q, _ := url.ParseQuery(query)
		if err := c.Get(t.Context(), "events", q, &page); err != nil {
			t.Errorf("events?%s: %v", query, err)
		}
		return page
	}
	if page := ask("after=0&wait=10s"); len(page.Items) != 1 || page.Last != 1 {
		t.Errorf("what is there: %+v", page)
	}
	if page := ask("after=1&wait=1ms"); len(page.Items) != 0 || page.Last != 1 {
		t.Errorf("when nothing comes: %+v", page)
	}
	if page := ask("after=9&wait=10s"); len(page.Items) != 0 || page.Last != 1 {
		t.Errorf("after another process: %+v", page)
	}
	next := make(chan Events)
	go func() { next <- ask("after=1&wait=10s") }()
	s.Journal.Remember(Event{Reason: "Second"})
	if page := <-next; len(page.Items) != 1 || page.Items[0].Reason != "Second" || page.Last != 2 {
		t.Errorf("what comes: %+v", page)
	}
}

// TestNoTarget: what does not exist is an error that names the nearest one.
func TestNoTarget(t *testing.T) {
	s := sourcesOf(t, 3, 2)
	s.Nodes = func() []string { return []string{"node-a"} }
	w := Writer{Sources: s,
		Drain: func(context.Context, lb.Drain, bool, bool) error { return agent.ErrNoEndpoint }}
	c := serveHandler(t, w.Handler())
	for _, x := range []struct{ method, resource, query, want string }{
		{"GET", "services", "namespace=n0&name=s0000", "there is no Service n0/s0000: did you mean s00000?"},
		{"GET", "endpoints", "namespace=no", "there is no Service in namespace no: did you mean n0?"},
		{"GET", "events", "name=nothing", "there is no Service nothing"},
		{"GET", "services", "namespace=n0&name=s00000&port=99", "there is no port 99 of Service n0/s00000"},
		{"POST", "drains", "endpoint=node/node-z", "no endpoint has the nodeName node-z: did you mean node/node-a?"},
		{"POST", "drains", "endpoint=10.1.0.1&namespace=n0&name=s0000", "there is no Service n0/s0000"},
		{"POST", "drains", "endpoint=192.0.2.200:1", "there is no endpoint 192.0.2.200:1 (--force drains an endpoint that comes later)"},
	} {
		q, err := url.ParseQuery(x.query)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Do(t.Context(), x.method, x.resource, q, new(any)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s %s?%s: %v, want %q", x.method, x.resource, x.query, err, x.want)
		}
	}
}

// TestDrains: what is asked for reaches the agent, and what is wrong is said; without Writer nothing can be drained.
func TestDrains(t *testing.T) {
	s := sourcesOf(t, 3, 2)
	var asked []string
	var fail error
	s.Nodes = func() []string { return []string{"node-a"} }
	w := Writer{Sources: s, Drain: func(_ context.Context, d lb.Drain, undo, force bool) error {
		asked = append(asked, fmt.Sprintf("%v %s %v %d %t %t", d.Addr, d.Node, d.Service, max(0, d.Deadline-1e18),
			undo, force))
		if fail == nil && !undo {
			s.LB.Drain(lb.NewDrains([]lb.Drain{d}, nil))
		}
		return fail
	}}
	c := serveHandler(t, w.Handler())
	for _, x := range []struct{ method, query, want string }{
		{"POST", "endpoint=10.1.0.1", "10.1.0.1:0  {n0 s00000} 0 false false"},
		{"POST", "endpoint=%5Bfd00::1%5D:80&deadline=5s&force=true", "[fd00::1]:80  {n0 s00000} 5000000000 false true"},
		{"DELETE", "endpoint=node/a", "invalid AddrPort a {n0 s00000} 0 true false"},
		{"POST", "endpoint=10.1.0.1:x", `"10.1.0.1:x" is no endpoint`},
		{"POST", "endpoint=node/", `"node/" is no endpoint`},
		{"POST", "", `"" is no endpoint`},
		{"POST", "endpoint=10.1.0.1&deadline=-1s", `deadline "-1s" is no duration from 0 to 720h`},
		{"POST", "endpoint=10.1.0.1&deadline=720h1s", `deadline "720h1s" is no duration from 0 to 720h`},
		{"POST", "endpoint=10.1.0.1&deadline=2562048h", `deadline "2562048h" is no duration from 0 to 720h`},
		{"DELETE", "endpoint=10.1.0.1&force=true", `there is no parameter "force" here`},
	} {
		q, err := url.ParseQuery(x.query)
		if err != nil {
			t.Fatal(err)
		}
		q.Set("namespace", "n0")
		q.Set("name", "s00000")
		asked = nil
		var one Drain
		got := ""
		if err := c.Do(t.Context(), x.method, "drains", q, &one); err != nil {
			got = err.Error()
		} else if len(asked) == 1 {
			got = asked[0]
		}
		if !strings.HasPrefix(got, x.want) {
			t.Errorf("%s %s: %q, want %q", x.method, x.query, got, x.want)
		}
	}
	s.LB.Drain(lb.NewDrains([]lb.Drain{{Addr: netip.MustParseAddrPort("10.1.0.1:0"), By: hostile,
		Deadline: 1e18 + 5e9}}, nil))
	all, err := All[Drain](t.Context(), c, "drains", nil)
	if err != nil || len(all) != 1 || all[0].Endpoint != "10.1.0.1" || all[0].By != hostile || all[0].Endpoints != 3 ||
		all[0].Deadline == nil {
		t.Errorf("the list is %+v, %v", all, err)
	}
	for want, err := range map[string]error{"is not drained": agent.ErrNotDrained, "--force": &agent.StrandedError{}} {
		fail = err
		if err := c.Do(t.Context(), "POST", "drains", url.Values{"endpoint": {"10.1.0.1"}}, new(Drain)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	readOnly := serve(t, s)
	if readOnly.Do(t.Context(), "POST", "drains", url.Values{"endpoint": {"10.1.0.1"}}, new(Drain)) == nil {
		t.Error("who may only read drains")
	}
}

// TestExplain: the state of the balancer that serves, by an address and by a name.
func TestExplain(t *testing.T) {
	s := sourcesOf(t, 3, 2)
	choice, err := s.LB.Pick(balancer.Flow{Frontend: lb.Frontend{Protocol: lb.TCP,
		Addr: netip.MustParseAddrPort("10.96.0.2:80")}})
	if err != nil {
		t.Fatal(err)
	}
	defer choice.Done(nil)
	c := serve(t, s)
	for _, q := range []url.Values{{"address": {"10.96.0.2:80"}, "client": {"192.0.2.1"}}, {"namespace": {"n0"},
		"name": {"s00002"}},
		{"address": {"10.96.0.2:80"}, "protocol": {"tcp"}}} {
		var answer List[Explanation]
		err := c.Get(t.Context(), "explain", q, &answer)
		if err != nil || len(answer.Items) != 1 {
			t.Errorf("explain %v: %+v, %v", q, answer, err)
			continue
		}
		e := answer.Items[0]
		if e.Service == nil || e.Service.Name != "s00002" || !strings.Contains(e.Text, "1 in flight") ||
			e.Path.Effective != "userspace" ||
			e.Filter == nil || e.Client != q.Get("client") {
			t.Errorf("explain %v: %+v", q, e)
		}
	}
}

// TestSocket: who may listen where, and who answers.
func TestSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "run", "api.sock")
	first, err := Listen(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has %v, %v", info, err)
	}
	if _, err := Listen(path, false); !errors.Is(err, ErrTaken) {
		t.Errorf("a second process listens there: %v", err)
	}
	successor, err := Listen(path, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the successor's socket went with the first: %v", err)
	}
	accepted := make(chan error, 1)
	go func() {
		c, err := successor.Accept()
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-accepted; err != nil {
		t.Errorf("our own user is not accepted: %v", err)
	}
	if err := successor.Close(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, true); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file is replaced: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}) // as for hand-overs
	if err != nil {
		t.Fatal(err)
	}
	other.SetUnlinkOnClose(false)
	if _, err := Listen(path, true); !errors.Is(err, unix.EPROTOTYPE) {
		t.Errorf("a socket of another kind, which is in use, is replaced: %v", err)
	}
	_ = other.Close() // as a crash leaves it
	again, err := Listen(path, false)
	if err != nil {
		t.Fatalf("what a crash has left stays in the way: %v", err)
	}
	_ = again.Close()
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(filepath.Join(open, "api.sock"), false); err == nil || !strings.Contains(err.Error(),
		"can be written by other users") {
		t.Errorf("a folder of others is used: %v, %v", l, err)
	}
}

// TestStranger: a process of another user that has come to the socket is not answered.
func TestStranger(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "api.sock")
	l, err := Listen(path, false)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: new(Sources).Handler()}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	defer func() { _ = server.Close(); <-ended }()
	for name, mode := range map[string]os.FileMode{path: 0o666, dir: 0o711, filepath.Dir(dir): 0o711} {
		if err := os.Chmod(name, mode); err != nil { // as if it had been given the socket
			t.Fatal(err)
		}
	}
	type result struct {
		answer []byte
		err    error
	}
	got := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and the user that it is with it
		const stranger = 65534 // a user who is neither root nor ours
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, stranger, stranger, stranger); errno != 0 {
			got <- result{err: errno}
			return
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			got <- result{err: err}
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET /v1 HTTP/1.0\r\n\r\n") // it may be closed already
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		answer, err := io.ReadAll(c)
		got <- result{answer, err}
	}()
	r := <-got
	if errors.Is(r.err, unix.EPERM) || errors.Is(r.err, unix.EINVAL) {
		t.Skipf("SKIPPED: there is no other user here: %v", r.err)
	}
	if len(r.answer) > 0 || r.err != nil && !errors.Is(r.err, unix.ECONNRESET) {
		t.Errorf("another user is answered %q, %v", r.answer, r.err)
	}
}

// TestClientWaits: a client that comes between two processes is answered by the second.
func TestClientWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	asked := make(chan error, 1)
	go func() {
		var answer any
		asked <- NewClient(path).Get(ctx, "status", nil, &answer)
	}()
	c, err := old.Accept() // a request that is under way
	if err != nil {
		t.Fatal(err)
	}
	next, err := Listen(path, true)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, "{}")
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(next) }()
	_, _ = old.Close(), c.Close()
	if err := <-asked; err != nil {
		t.Errorf("a request at the time of a hand-over: %v", err)
	}
	_ = server.Close()
	<-ended
	var answer any
	if err := NewClient(path).Get(ctx, "status", nil, &answer); !errors.Is(err, ErrNotRunning) {
		t.Errorf("without a process: %v", err)
	}
}

// TestTypes: answers are what JSON says they are, so that names do not change by mistake.
func TestTypes(t *testing.T) {
	text, err := json.Marshal(Service{ID: ID{Namespace: "a", Name: "b", Protocol: "TCP", Family: "IPv4"},
		Counted: Counted{Picks: 1}})
	const want = `{"namespace":"a","name":"b","protocol":"TCP","family":"IPv4","addresses":null,` +
		`"path":{"requested":"","effective":""},` +
		`"endpoints":0,"eligible":0,"picks":1,"failures":0,"active":0,"bytesIn":0,"bytesOut":0,` +
		`"refused":{"noEndpoint":0,` +
		`"noLocalEndpoint":0,"notAllowed":0,"overShare":0,"limited":0}}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
}
