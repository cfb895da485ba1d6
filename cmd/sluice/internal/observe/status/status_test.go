package status

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func get(t *testing.T, h http.Handler, method, path string) (int, http.Header, string) {
	t.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	req, err := http.NewRequest(method, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

// TestHealth: the answers of kube-proxy 1.36 to each probe in each state.
func TestHealth(t *testing.T) {
	updated := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	good := Health{Healthy: true, NodeEligible: true, Serving: true, LastUpdated: updated, Families: []string{"IPv4", "IPv6"}}
	with := func(change func(*Health)) Health { h := good; change(&h); return h }
	for _, test := range []struct {
		name           string
		health         Health
		healthz, livez int
		body           string // of /healthz, without the first two fields
		live           string // of /livez, likewise
	}{
		{"good", good, 200, 200,
			`"nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true}}}`,
			`"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true}}}`},
		{"stale", with(func(h *Health) { h.Healthy, h.Families = false, h.Families[:1] }), 503, 503,
			`"nodeEligible":true,"healthy":false,"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":false}}}`,
			`"healthy":false,"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":false}}}`},
		{"leaving", with(func(h *Health) { h.NodeEligible, h.Families = false, nil }), 503, 200,
			`"nodeEligible":false,"healthy":true}`, `"healthy":true}`},
		{"stopping", with(func(h *Health) { h.Serving, h.Families = false, nil }), 503, 200,
			`"nodeEligible":true,"healthy":false}`, `"healthy":true}`},
		{"starting", Health{Healthy: true}, 503, 200, `"nodeEligible":false,"healthy":false}`, `"healthy":true}`},
	} {
		var told []string
		h := HealthHandler(func() Health { return test.health }, func(path string, code int) { told = append(told, fmt.Sprint(path, code)) })
		for _, probe := range []struct {
			path, body string
			code       int
		}{{"/healthz", test.body, test.healthz}, {"/livez", test.live, test.livez}} {
			code, header, body := get(t, h, "GET", probe.path)
			if code != probe.code || !strings.HasSuffix(body, `Z",`+probe.body) && !strings.HasSuffix(body, `",`+probe.body) {
				t.Errorf("%s %s = %d %s\nwant %d ...%s", test.name, probe.path, code, body, probe.code, probe.body)
			}
			if header.Get("Content-Type") != "application/json" || header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s %s: headers %v", test.name, probe.path, header)
			}
			var times struct{ LastUpdated, CurrentTime time.Time }
			if err := json.Unmarshal([]byte(body), &times); err != nil {
				t.Fatalf("%s: %s: %v", probe.path, body, err)
			}
			if fresh := times.LastUpdated.Equal(times.CurrentTime); fresh != (code == 200) || time.Since(times.CurrentTime) > time.Minute {
				t.Errorf("%s %s: times %+v", test.name, probe.path, times)
			}
		}
		if want := []string{fmt.Sprint("/healthz", test.healthz), fmt.Sprint("/livez", test.livez)}; !slices.Equal(told, want) {
			t.Errorf("%s: told of %v, want %v", test.name, told, want)
		}
	}
	quiet := func(string, int) {}
	if code, _, _ := get(t, HealthHandler(func() Health { return good }, quiet), "GET", "/metrics"); code != http.StatusNotFound {
		t.Errorf("/metrics on the health address = %d, want 404", code)
	}
}

func TestInfo(t *testing.T) {
	i := Info{Mode: "userspace", Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "numbers") })}
	for path, want := range map[string]string{"/metrics": "numbers", "/proxyMode": "userspace", "/healthz": "ok"} {
		if code, _, body := get(t, i.Handler(), "GET", path); code != http.StatusOK || body != want {
			t.Errorf("%s = %d %q, want %q", path, code, body, want)
		}
	}
	if code, _, _ := get(t, i.Handler(), "POST", "/proxyMode"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST = %d, want 405", code)
	}
	for _, path := range []string{"/debug/pprof/", "/debug/flags/v"} {
		if code, _, _ := get(t, i.Handler(), "GET", path); code != http.StatusNotFound {
			t.Errorf("%s = %d although nobody asked for it", path, code)
		}
	}
	i.Config = map[string]string{"kind": "KubeProxyConfiguration"}
	if _, header, body := get(t, i.Handler(), "GET", "/configz"); body != `{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration"}}` || header.Get("Content-Type") != "application/json" {
		t.Errorf("/configz = %s, %v", body, header)
	}
	i.Steering = map[string]string{"packetFilter": "nftables"}
	if _, _, body := get(t, i.Handler(), "GET", "/configz"); !strings.Contains(body, `"sluice":{"packetFilter":"nftables"}`) {
		t.Errorf("/configz = %s", body)
	}
}

func TestProfiling(t *testing.T) {
	level := -1
	h := Info{Metrics: http.NotFoundHandler(), Profiling: true, SetVerbosity: func(v int) { level = v }}.Handler()
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/profile?seconds=1", "/debug/pprof/symbol"} {
		if code, _, body := get(t, h, "GET", path); code != 200 || body == "" {
			t.Errorf("%s = %d %q", path, code, body)
		}
	}
	for _, test := range []struct {
		method, body string
		code, level  int
		answer       string
	}{
		{"PUT", "4", 200, 4, "successfully set klog.logging.verbosity to 4\n"},
		{"GET", "", 406, 4, "unsupported http method\n"},
		{"PUT", "-1", 400, 4, ""},
		{"PUT", "much", 400, 4, ""},
		{"PUT", strings.Repeat("1", 100), 400, 4, ""},
		{"PUT", "0", 200, 0, ""},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(test.method, "/debug/flags/v", strings.NewReader(test.body)))
		if w.Code != test.code || level != test.level || test.answer != "" && w.Body.String() != test.answer {
			t.Errorf("%s %q = %d %q, level %d", test.method, test.body, w.Code, w.Body, level)
		}
	}
}

func TestListenConflictAndClose(t *testing.T) {
	s, err := Binding{Addr: "127.0.0.1:0", Handler: http.NotFoundHandler(), Open: net.Listen}.Serve()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if _, err := (Binding{Addr: "192.0.2.1:1", Open: net.Listen}).Serve(); err == nil {
		t.Error("Listen on an address of nobody succeeded")
	}
	told := 0
	s, err = Binding{Addr: "192.0.2.1:1", Open: net.Listen, Failed: func(error) { told++ }}.Serve()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil || told != 1 {
		t.Errorf("Close of what never served = %v, told %d times", err, told)
	}
}

func TestServiceChecks(t *testing.T) {
	local := func(n int) func() int { return func() int { return n } }
	healthy := true
	c := ServiceChecks{Healthy: func() bool { return healthy }, Open: net.Listen}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	// Two free ports, found by listening on them for a moment.
	free := func() netip.AddrPort {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return netip.MustParseAddrPort(l.Addr().String())
	}
	one, two := free(), free()
	ask := func(addr netip.AddrPort) (int, string, string) {
		resp, err := http.Get("http://" + addr.String() + "/any/path")
		if err != nil {
			return 0, "", ""
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), strings.TrimSpace(string(body))
	}
	if err := c.Sync(map[netip.AddrPort]ServiceHealth{one: {"default", "web", local(2)}, two: {"default", "dns", local(0)}}); err != nil {
		t.Fatal(err)
	}
	want := `{"localEndpoints":2,"service":{"name":"web","namespace":"default"},"serviceProxyHealthy":true}`
	if code, weight, body := ask(one); code != 200 || weight != "2" || body != want {
		t.Errorf("check = %d, weight %s, %s", code, weight, body)
	}
	if code, weight, _ := ask(two); code != 503 || weight != "0" {
		t.Errorf("check without local endpoints = %d, weight %s", code, weight)
	}
	healthy = false
	if code, _, body := ask(one); code != 503 || !strings.Contains(body, `"serviceProxyHealthy":false`) {
		t.Errorf("check of an unhealthy proxy = %d, %s", code, body)
	}
	healthy = true

	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	third := netip.MustParseAddrPort(taken.Addr().String())
	told := make(chan error, 2)
	c.Retry = 10 * time.Millisecond
	c.Failed = func(of ServiceHealth, addr netip.AddrPort, err error) {
		if of.Name != "late" || addr != third {
			t.Errorf("told of %v at %v", of, addr)
		}
		told <- err
	}
	if err := c.Sync(map[netip.AddrPort]ServiceHealth{two: {"default", "other", local(1)}, third: {"default", "late", local(1)}}); err != nil {
		t.Fatal(err)
	}
	if err := <-told; err == nil {
		t.Error("told that a taken port is served")
	}
	if code, _, _ := ask(one); code != 0 {
		t.Errorf("a check that is no longer wanted = %d", code)
	}
	if code, weight, body := ask(two); code != 200 || weight != "1" || !strings.Contains(body, "other") {
		t.Errorf("a check that is another Service's now = %d, weight %s, %s", code, weight, body)
	}
	taken.Close()
	if err := <-told; err != nil {
		t.Error(err)
	}
	if code, _, _ := ask(third); code != 200 {
		t.Errorf("a check that was late = %d", code)
	}
}

// TestZPages: /statusz and /flagz are text for who does not ask for an object, as kube-proxy 1.37 has them.
func TestZPages(t *testing.T) {
	i := Info{Metrics: http.NotFoundHandler(), Version: "v1.2.3", Started: time.Now().Add(-3661 * time.Second),
		Flags: map[string]string{"v": "2", "proxy-mode": "auto"}, Profiling: true}
	ask := func(path, accept string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		i.Handler().ServeHTTP(w, r)
		return w
	}
	const status = `"kind":"Statusz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"sluice"},"startTime":"`
	for _, x := range []struct {
		path, accept string
		code         int
		content      string
		has          []string
	}{
		{"/statusz", "", 200, "text/plain; charset=utf-8", []string{"\nsluice statusz\nWarning: ", "\nUp: 1 hr 01 min ",
			"\nBinary version: v1.2.3\n", "\nPaths: /configz /debug /flagz /healthz /metrics /proxyMode\n"}},
		{"/statusz", "*/*", 200, "text/plain; charset=utf-8", nil},
		{"/statusz", "text/html, text/*;q=0.5", 200, "text/plain; charset=utf-8", nil},
		{"/statusz", "application/json", 406, "text/plain", []string{"as=Statusz;g=config.k8s.io;v=v1beta1"}},
		{"/statusz", "application/json;as=Flagz;g=config.k8s.io;v=v1beta1", 406, "text/plain", nil},
		{"/statusz", "application/json;as=Statusz;g=config.k8s.io;v=v1", 406, "text/plain", nil},
		{"/statusz", "text/plain;q=0.1,application/json;v=v1beta1;g=config.k8s.io;as=Statusz", 200, "application/json",
			[]string{status, `"uptimeSeconds":36`, `"binaryVersion":"v1.2.3","paths":["/configz",`}},
		{"/flagz", "", 200, "text/plain; charset=utf-8", []string{"\nsluice flagz\nWarning: ", "only.\nproxy-mode=auto\nv=2\n"}},
		{"/flagz", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz", 200, "application/json",
			[]string{`{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"sluice"},"flags":{"proxy-mode":"auto","v":"2"}}`}},
		{"/flagz", "application/yaml;v=v1alpha1;g=config.k8s.io;as=Flagz", 200, "application/yaml",
			[]string{"apiVersion: config.k8s.io/v1alpha1\n", "  proxy-mode: auto\n"}},
	} {
		w := ask(x.path, x.accept)
		if w.Code != x.code || w.Header().Get("Content-Type") != x.content {
			t.Errorf("%s for %q is %d %s, want %d %s", x.path, x.accept, w.Code, w.Header().Get("Content-Type"), x.code, x.content)
		}
		for _, has := range x.has {
			if !strings.Contains(w.Body.String(), has) {
				t.Errorf("%s for %q lacks %q:\n%s", x.path, x.accept, has, w.Body)
			}
		}
		if warns := w.Header().Get("Warning") != ""; warns != strings.Contains(x.accept, "v1alpha1") {
			t.Errorf("%s for %q warns: %v", x.path, x.accept, warns)
		}
	}
}
