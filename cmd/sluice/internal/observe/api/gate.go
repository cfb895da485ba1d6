package api

import (
	"net/http"
	"sync/atomic"
)

// Gate answers requests by a handler once it is open, and says before what the process waits for.
type Gate struct {
	Waits func() string

	handler atomic.Pointer[http.Handler]
}

// Open has requests answered by h from now on.
func (g *Gate) Open(h http.Handler) { g.handler.Store(&h) }

// ServeHTTP answers a request.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := g.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	w.Header().Set("Retry-After", "1")
	write(w, nil, &Error{http.StatusServiceUnavailable, g.Waits()})
}
