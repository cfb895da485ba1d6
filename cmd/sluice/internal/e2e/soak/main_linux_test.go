package soak

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// What attackers run is in processes of its own, so that it takes nothing from the victims: they are in this one.
func TestMain(m *testing.M) {
	os.Exit(lab.Main(m, testbed.Programs{"knock": status(runKnock), "serve": status(runServe)}))
}

// status makes a program of a function.
func status(run func(args []string) error) func([]string) int {
	return func(args []string) int {
		if err := run(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}
