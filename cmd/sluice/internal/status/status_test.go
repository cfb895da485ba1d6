package status

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
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
