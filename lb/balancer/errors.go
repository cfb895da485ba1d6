package balancer

import "errors"

// The errors of Pick.
var (
	// ErrNoService: no service of the current table owns the address. The data path
	// should close the connection as if nothing listened.
	ErrNoService = errors.New("no service at this address")

	// ErrNoBackend: the service has no eligible backend. Kubernetes expects such a
	// connection to be refused rather than to be accepted and closed.
	ErrNoBackend = errors.New("service has no eligible endpoint")

	// ErrNoLocalBackend: the address has policy Local, and no eligible backend is on this
	// node. Kubernetes expects such traffic to be dropped, so that clients try again while
	// their load balancer finds a node that has one, rather than take a refusal for final.
	ErrNoLocalBackend = errors.New("service has no eligible endpoint on this node")

	// ErrNotAllowed: the client is not among the sources of the address. Kubernetes
	// expects it to be dropped.
	ErrNotAllowed = errors.New("client is not among the sources of this address")

	// ErrFull: each eligible backend has as many connections as it may. The client may wait: see Queues.Join.
	ErrFull = errors.New("every endpoint of the service has as many connections as it may")
)

// ErrQueueFull is that of Queues.Join.
var ErrQueueFull = errors.New("as many clients of the service wait as may")

// The errors of Queues.Admit, because of a limit that the service requests.
var (
	ErrServiceLimit = errors.New("service has as many connections as it may")
	ErrClientLimit  = errors.New("client has as many connections to the service as it may")
	ErrClientRate   = errors.New("client opens connections to the service faster than it may")
)
