package node

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
)

// TuneConntrack applies the kernel settings that steered packets need. Settings that differ
// without harm are logged as warnings.
func TuneConntrack(c conntrack.Settings, log *zap.Logger) error {
	warnings, err := c.Apply()
	for _, warning := range warnings {
		log.Warn("conntrack", zap.String("warning", warning))
	}
	if apart := conntrack.DisableEarlyDemux(); apart != nil {
		err = errors.Join(err, fmt.Errorf("keep two connections from one client port apart: %w", apart))
	}
	return err
}
