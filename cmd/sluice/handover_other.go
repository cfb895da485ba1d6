//go:build !linux

package main

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// succession does nothing here: everything ends with the process.
type succession struct{}

func newSuccession() (*succession, error) { return new(succession), nil }

func (*succession) fail(error) {}

func (*succession) find(*program) error { return nil }

// collector has no series.
func (*succession) collector() prometheus.Collector { return prometheus.NewRegistry() }

func (*succession) take(context.Context) (bool, error) { return false, nil }

func (*succession) serve(context.Context, *sync.WaitGroup) {}

func (*succession) close() {}

func (*succession) upgrade(string, func(int)) error {
	return errors.New("upgrades without loss: not on this platform")
}

func command([]string, io.Writer, io.Writer) (code int, ok bool) { return 0, false }
