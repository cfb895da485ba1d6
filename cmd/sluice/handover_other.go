//go:build !linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// succession does nothing here: everything ends with the process.
type succession struct{}

func newSuccession() (*succession, error) { return new(succession), nil }

func (*succession) fail(error) {}

func (*succession) find(*program) error { return nil }

func (*succession) taking() bool { return false }

// collector has no series.
func (*succession) collector() prometheus.Collector { return prometheus.NewRegistry() }

func (*succession) take(context.Context) (bool, error) { return false, nil }

func (*succession) serve(context.Context, *sync.WaitGroup) {}

func (*succession) close() {}

func (*succession) upgrade(string, func(int)) error {
	return errors.New("upgrades without loss: not on this platform")
}

// command answers the word of the command line that asks for an upgrade.
func command(args []string, _, stderr io.Writer) (code int, ok bool) {
	if len(args) == 0 || args[0] != "upgrade" {
		return 0, false
	}
	fmt.Fprintln(stderr, "sluice: upgrade: connections are handed over on Linux only: stop the running Sluice, and start the new one")
	return 1, true
}
