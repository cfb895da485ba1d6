package status

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
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

func TestHealth(t *testing.T) {
	updated := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	health := Health{LastUpdated: updated}
	h := HealthHandler(func() Health { return health })
	for _, path := range []string{"/healthz", "/livez"} {
		for _, healthy := range []bool{false, true} {
			health.Healthy = healthy
			code, header, body := get(t, h, "GET", path)
			want := http.StatusServiceUnavailable
			if healthy {
				want = http.StatusOK
			}
			var payload struct {
				LastUpdated, CurrentTime string
				Healthy                  bool
			}
			if err := json.Unmarshal([]byte(body), &payload); err != nil {
				t.Fatalf("%s: body %q: %v", path, body, err)
			}
			if code != want || payload.Healthy != healthy || header.Get("Content-Type") != "application/json" {
				t.Errorf("%s while healthy is %v = %d, %q", path, healthy, code, body)
			}
			if old := payload.LastUpdated == updated.String(); old == healthy || payload.CurrentTime == "" {
				t.Errorf("%s while healthy is %v says lastUpdated %s", path, healthy, payload.LastUpdated)
			}
		}
	}
	if code, _, _ := get(t, h, "GET", "/metrics"); code != http.StatusNotFound {
		t.Errorf("/metrics on the health address = %d, want 404", code)
	}
}

func TestMetrics(t *testing.T) {
	h := MetricsHandler("userspace", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "numbers") }))
	for path, want := range map[string]string{"/metrics": "numbers", "/proxyMode": "userspace", "/healthz": "ok"} {
		if code, _, body := get(t, h, "GET", path); code != http.StatusOK || body != want {
			t.Errorf("%s = %d %q, want %q", path, code, body, want)
		}
	}
	if code, _, _ := get(t, h, "POST", "/proxyMode"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST = %d, want 405", code)
	}
}

func TestListenConflictAndClose(t *testing.T) {
	s, err := Listen("127.0.0.1:0", http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if _, err := Listen("192.0.2.1:1", http.NotFoundHandler()); err == nil {
		t.Error("Listen on an address of nobody succeeded")
	}
}

func TestServiceChecks(t *testing.T) {
	healthy := true
	c := ServiceChecks{Healthy: func() bool { return healthy }}
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
	if err := c.Sync(map[netip.AddrPort]ServiceHealth{one: {"default", "web", 2}, two: {"default", "dns", 0}}); err != nil {
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
	err = c.Sync(map[netip.AddrPort]ServiceHealth{two: {"default", "dns", 1}, third: {"default", "late", 1}})
	if err == nil || !strings.Contains(err.Error(), "default/late") {
		t.Errorf("Sync with a taken port = %v, want an error that names the Service", err)
	}
	if code, _, _ := ask(one); code != 0 {
		t.Errorf("a check that is no longer wanted = %d", code)
	}
	if code, weight, _ := ask(two); code != 200 || weight != "1" {
		t.Errorf("a check that has changed = %d, weight %s", code, weight)
	}
}
