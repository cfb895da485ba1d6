//go:build !linux

package sctp

import (
	"errors"
	"fmt"

	"github.com/sluice-lb/sluice/sctp/engine"
)

const maxShares = 0

func newEngine(Engine, Config, int) engine.Engine { return nil } // choose has failed

// choose reports errors.ErrUnsupported: there is neither SCTP nor a way to see its packets here.
func choose(Engine) (Engine, string, error) {
	return Auto, "", fmt.Errorf("forward SCTP: %w on this platform", errors.ErrUnsupported)
}
