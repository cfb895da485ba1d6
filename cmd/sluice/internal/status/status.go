package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Health is what a health probe is answered.
type Health struct {
	Healthy     bool
	LastUpdated time.Time // when the data path was last brought up to date
}

// HealthHandler answers /healthz and /livez: 200 while get reports health, and
// 503 otherwise, with kube-proxy's JSON payload. What is healthy counts as
// up to date now, as in kube-proxy.
func HealthHandler(get func() Health) http.Handler {
	answer := func(w http.ResponseWriter, _ *http.Request) {
		h, now := get(), time.Now()
		code := http.StatusServiceUnavailable
		if h.Healthy {
			code, h.LastUpdated = http.StatusOK, now
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(code)
		// An error means that the probe has gone; there is nobody to tell.
		_ = json.NewEncoder(w).Encode(map[string]any{
			"lastUpdated": h.LastUpdated.String(),
			"currentTime": now.String(),
			"healthy":     h.Healthy,
		})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer)
	mux.HandleFunc("GET /livez", answer)
	return mux
}

// MetricsHandler answers /metrics with metrics, /proxyMode with the mode's name
// and /healthz with "ok", which says only that the process answers.
func MetricsHandler(mode string, metrics http.Handler) http.Handler {
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = fmt.Fprint(w, s)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /proxyMode", text(mode))
	mux.HandleFunc("GET /healthz", text("ok"))
	return mux
}

// Server is an HTTP server on one address.
type Server struct {
	http http.Server
	done sync.WaitGroup
	err  error // why it ended, read after done
}

// Listen serves handler on addr ("host:port"). The caller ends it by Close.
func Listen(addr string, handler http.Handler) (*Server, error) {
	return listen("tcp", addr, handler)
}

// ListenOn is Listen for an address of one family: with [::] it takes no IPv4.
func ListenOn(addr netip.AddrPort, handler http.Handler) (*Server, error) {
	network := "tcp4"
	if addr.Addr().Is6() {
		network = "tcp6"
	}
	return listen(network, addr.String(), handler)
}

func listen(network, addr string, handler http.Handler) (*Server, error) {
	l, err := net.Listen(network, addr)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	s := &Server{http: http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
	}}
	s.done.Go(func() { s.err = s.http.Serve(l) })
	return s, nil
}

// Close ends the server, giving requests in progress one second, and waits for it.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	s.done.Wait()
	if !errors.Is(s.err, http.ErrServerClosed) {
		err = errors.Join(err, s.err)
	}
	return err
}
