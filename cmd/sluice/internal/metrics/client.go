package metrics

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// client counts requests to the API server, under the names of all components of
// Kubernetes. client-go has one such place in a process.
var client = newRestClient()

// restClient is the series of client-go's REST client.
type restClient struct {
	requests, retries *prometheus.CounterVec
	duration, waited  *prometheus.HistogramVec
}

func newRestClient() *restClient {
	buckets := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	counter := func(name, help, verb string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"code", verb, "host"})
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		opts := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
		return prometheus.NewHistogramVec(opts, []string{"verb", "host"})
	}
	return &restClient{
		requests: counter("rest_client_requests_total", "Requests to the API server, by HTTP status.", "method"),
		retries:  counter("rest_client_request_retries_total", "Requests to the API server that were retried.", "verb"),
		duration: histogram("rest_client_request_duration_seconds", "Time that the API server took to answer."),
		waited: histogram("rest_client_rate_limiter_duration_seconds",
			"Time that requests waited for --kube-api-qps."),
	}
}

// register makes client-go count. Only the first call does anything.
func (c *restClient) register() {
	clientmetrics.Register(clientmetrics.RegisterOpts{
		RequestLatency: latency{c.duration}, RateLimiterLatency: latency{c.waited}, RequestResult: c, RequestRetry: c,
	})
}

func (c *restClient) counted() []prometheus.Collector {
	return []prometheus.Collector{c.requests, c.retries, c.duration, c.waited}
}

// Increment counts an answer; code is <error> if there was none.
func (c *restClient) Increment(_ context.Context, code, method, host string) {
	c.requests.WithLabelValues(code, method, host).Inc()
}

// IncrementRetry counts a request that is sent again.
func (c *restClient) IncrementRetry(_ context.Context, code, verb, host string) {
	c.retries.WithLabelValues(code, verb, host).Inc()
}

// latency is a histogram as client-go observes it.
type latency struct{ h *prometheus.HistogramVec }

// Observe records a request.
func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l.h.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}
