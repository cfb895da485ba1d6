package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// retryEvery is how often an address that cannot be bound is retried; kube-proxy's
// period.
const retryEvery = 5 * time.Second

// Binding is an address to serve HTTP on.
type Binding struct {
	Network string // of net.Listen; empty: "tcp"
	Addr    string // host:port
	Handler http.Handler

	// Open opens the socket, as net.Listen does.
	Open func(network, addr string) (net.Listener, error)
	// Failed is called when the address cannot be bound, once, and once more with nil
	// when it is served after all. It may be called from any goroutine. nil: Serve fails.
	Failed func(error)
	// Retry is the time between two attempts. 0: every 5 s.
	Retry time.Duration
}

// Server is an HTTP server on one address.
type Server struct {
	http http.Server
	stop context.CancelFunc
	done sync.WaitGroup
	err  error // why it ended, read after done
}

// Serve serves as soon as the address can be bound, which it tries once before it
// returns. The caller ends the server by Close.
func (b Binding) Serve() (*Server, error) {
	l, err := b.listen()
	if err != nil && b.Failed == nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{stop: cancel, http: http.Server{
		Handler:           b.Handler,
		BaseContext:       func(net.Listener) context.Context { return ctx }, // those who wait do not, once it ends
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
	}}
	if err != nil {
		b.Failed(err)
	}
	s.done.Go(func() {
		if err != nil {
			if l = b.wait(ctx); l == nil {
				s.err = http.ErrServerClosed
				return
			}
			b.Failed(nil)
		}
		s.err = s.http.Serve(l)
	})
	return s, nil
}

func (b Binding) listen() (net.Listener, error) {
	l, err := b.Open(cmp.Or(b.Network, "tcp"), b.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	return l, nil
}

// wait tries until it has the address or ctx ends; then it returns nil.
func (b Binding) wait(ctx context.Context) net.Listener {
	tick := time.NewTicker(cmp.Or(b.Retry, retryEvery))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if l, err := b.listen(); err == nil {
				return l
			}
		}
	}
}

// Close ends the server, giving requests in progress one second, and waits for it.
func (s *Server) Close() error {
	s.stop()
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
