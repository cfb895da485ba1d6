package lb

import "errors"

// ErrNoService is returned by Pick for an address that no service of the current
// table owns. The data path should close the connection as if nothing listened.
var ErrNoService = errors.New("no service at this address")

// ErrNoBackend is returned by Pick for a service that exists and has no eligible
// backend. Kubernetes expects such a connection to be refused rather than to be
// accepted and closed.
var ErrNoBackend = errors.New("service has no eligible backend")

// ErrNoLocalBackend is returned by Pick for an address with policy Local if the
// service has eligible backends, but none on this node. Kubernetes expects such
// traffic to be dropped, so that clients try again while their load balancer finds
// a node that has one, rather than take a refusal for final.
var ErrNoLocalBackend = errors.New("service has no eligible backend on this node")

// ErrNotAllowed is returned by Pick for a client that is not among the sources of
// the address. Kubernetes expects it to be dropped.
var ErrNotAllowed = errors.New("client is not among the sources of this address")
