package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
	"github.com/sluice-lb/sluice/kernelmodes/iptables"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/redirect/addresses"
	"github.com/sluice-lb/sluice/redirect/transparent"
)

// cleanupTimeout bounds --cleanup, which may have to wait for the xtables lock.
const cleanupTimeout = time.Minute

// Cleanup removes every trace of any mode from this host, unless a running process needs it.
func Cleanup() error {
	lock, err := node.NewLock()
	if err != nil {
		return err
	}
	defer lock.Release()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	return removeTraces(ctx)
}

// removeTraces is Cleanup by the process that has the instance lock. It goes on after an
// error, and returns each one once.
func removeTraces(ctx context.Context) error {
	var said []string
	for _, remove := range []func(context.Context) error{ipvs.Cleanup, nftables.Cleanup, iptables.Cleanup,
		redirect.Cleanup, transparent.Cleanup, addresses.Cleanup} {
		err := remove(ctx)
		if err == nil || errors.Is(err, errors.ErrUnsupported) { // this system has nothing of the kind
			continue
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !slices.Contains(said, line) {
				said = append(said, line)
			}
		}
	}
	if said == nil {
		return nil
	}
	return errors.New(strings.Join(said, "\n"))
}
