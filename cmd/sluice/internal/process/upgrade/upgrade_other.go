//go:build !linux

package upgrade

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/handover"
)

var errUnsupported = errors.New("connections are handed over on Linux only: stop the running Sluice, and " +
	"start the new one")

// Upgrader does nothing here: everything ends with the process.
type Upgrader struct{}

// New returns an Upgrader.
func New() (*Upgrader, error) { return new(Upgrader), nil }

// Fail returns false.
func (*Upgrader) Fail(error) bool { return false }

// Prepare does nothing.
func (*Upgrader) Prepare(_, _ string, _ *zap.Logger) error { return nil }

// Found returns false: there is never a process to take over from.
func (*Upgrader) Found() bool { return false }

// Unasked returns false.
func (*Upgrader) Unasked() bool { return false }

// Listen is net.Listen.
func (*Upgrader) Listen(network, addr string) (net.Listener, error) { return net.Listen(network, addr) }

// Collector has no series.
func (*Upgrader) Collector() prometheus.Collector { return prometheus.NewRegistry() }

// Take returns false: there is never a process to take over from.
func (*Upgrader) Take(context.Context, *handover.State) (bool, error) { return false, nil }

// Serve does nothing.
func (*Upgrader) Serve(*handover.State, func(error)) {}

// Done returns nil: nothing is ever handed over.
func (*Upgrader) Done() <-chan struct{} { return nil }

// Close does nothing.
func (*Upgrader) Close() error { return nil }

// Upgrade returns an error.
func (*Upgrader) Upgrade(string) error { return errUnsupported }

// Request returns an error.
func Request([]string, io.Writer) error { return errUnsupported }
