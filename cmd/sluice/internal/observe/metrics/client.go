package metrics

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// The series of requests to the API server, under the names of all components of
// Kubernetes. client-go has one place for them in a process.
var (
	requests = newRequests("rest_client_requests_total",
		"[ALPHA] Requests to the API server, by HTTP status.", "method")
	retries = newRequests("rest_client_request_retries_total",
		"[ALPHA] Requests to the API server that were retried.", "verb")
	duration = newLatency("rest_client_request_duration_seconds", "[ALPHA] Time that the API server took to answer.")
	waited   = newLatency("rest_client_rate_limiter_duration_seconds",
		"[ALPHA] Time that requests waited for --kube-api-qps.")
)

// registerClient makes client-go count, which only the first call does, and registers the series.
func registerClient(r *prometheus.Registry) {
	clientmetrics.Register(clientmetrics.RegisterOpts{
		RequestLatency: duration, RateLimiterLatency: waited, RequestResult: requests, RequestRetry: retries,
	})
	r.MustRegister(requests, retries, duration, waited)
}

// counted counts requests as client-go does.
type counted struct{ *prometheus.CounterVec }

func newRequests(name, help, verb string) counted {
	opts := prometheus.CounterOpts{Name: name, Help: help}
	return counted{prometheus.NewCounterVec(opts, []string{"code", verb, "host"})}
}

// Increment counts an answer; code is <error> if there was none.
func (c counted) Increment(_ context.Context, code, verb, host string) {
	c.WithLabelValues(code, verb, host).Inc()
}

// IncrementRetry counts a request that is sent again.
func (c counted) IncrementRetry(ctx context.Context, code, verb, host string) {
	c.Increment(ctx, code, verb, host)
}

// latency is a histogram as client-go observes it.
type latency struct{ *prometheus.HistogramVec }

func newLatency(name, help string) latency {
	opts := prometheus.HistogramOpts{Name: name, Help: help,
		Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}}
	return latency{prometheus.NewHistogramVec(opts, []string{"verb", "host"})}
}

// Observe records a request.
func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}
