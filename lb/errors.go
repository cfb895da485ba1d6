package lb

import "errors"

// ErrNoService is returned by Pick for a frontend that no service of the current
// table owns. The data path should close the connection as if nothing listened.
var ErrNoService = errors.New("no service at this address")

// ErrNoBackend is returned by Pick for a service that exists and has no eligible
// backend. Kubernetes expects such a connection to be refused rather than to be
// accepted and closed.
var ErrNoBackend = errors.New("service has no eligible backend")
