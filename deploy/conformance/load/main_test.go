package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
)

// TestLoad counts failed requests and cut connections of a server that breaks its promises.
func TestLoad(t *testing.T) {
	for _, c := range []struct {
		name    string
		handler func(n int64, w http.ResponseWriter)
		failed  bool
		cut     bool
	}{
		{"fine", func(int64, http.ResponseWriter) {}, false, false},
		{"status", func(_ int64, w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }, true, true},
		{"closes", func(_ int64, w http.ResponseWriter) { w.Header().Set("Connection", "close") }, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancel(t.Context())
			var n, held atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c.handler(n.Add(1), w)
				// A held connection asks a second time after a second; then the run has seen everything.
				if !r.Close && held.Add(1) == 2 && n.Load() > 2 {
					stop()
				}
			}))
			defer server.Close()
			defer stop()
			at, err := url.Parse(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			r := run(ctx, at, 20, 1)
			if r.Requests == 0 || r.Held != 1 || (r.Failed > 0) != c.failed || (r.Cut > 0) != c.cut {
				t.Errorf("failed %t and cut %t wanted, got %d requests, failed %d, cut %d, errors %v",
					c.failed, c.cut, r.Requests, r.Failed, r.Cut, r.Errors)
			}
		})
	}
}
