package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/notify"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/upgrade"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
)

const (
	// offloadTimeout bounds the writing of rules at the end, which may wait for the xtables lock and be that of ten
	// thousand Services.
	offloadTimeout = time.Minute

	// lookEvery is how often it is looked for what no event reports at the end.
	lookEvery = 20 * time.Millisecond

	// offloadRetry is how long to wait before rules that could not be written are tried again.
	offloadRetry = time.Second

	// handshakeTimeout is how long a client has for the last step of its handshake: until it would be reminded of it
	// (RFC 6298, 2.1).
	handshakeTimeout = time.Second
)

// stop ends what start has started as --on-exit says, and waits for connections to end. Another process may take over
// until then; there is nothing left to do if it does.
func (d *daemon) stop(cancel context.CancelFunc) error {
	notify.Stopping(d.Log, "draining connections")
	d.stopping.Store(true) // probes fail from now on, so that load balancers send no more
	cancel()
	d.background.Wait()
	d.lock.Ending()
	d.leaveQueues()
	process := &d.Config.Process
	ctx, cancel := context.WithTimeout(context.Background(), process.DrainTimeout)
	defer cancel()
	d.data.report(d.Log, process.DrainTimeout)
	if process.OnExit == config.Offload {
		d.offload(ctx)
	}
	if err := d.Upgrade.Close(); errors.Is(err, upgrade.ErrHandedOver) {
		d.journal.Close()
		d.Log.Info("stopped; another process has taken over")
		return nil
	} else if err != nil {
		return err
	}
	if process.OnExit != config.CleanUp {
		d.lock.Release() // the next may start while this one drains
	}
	reset := d.data.drain(ctx, d.Log)
	if err := d.close(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if reset {
		if err := d.data.forgetReset(); err != nil {
			d.Log.Warn("clients that were reset may be refused for ten seconds at the ports they had", zap.Error(err))
		}
	}
	if process.OnExit == config.CleanUp {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := removeTraces(ctx); err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
		d.Log.Info("stopped; every rule and address is removed")
		return nil
	}
	d.Log.Info("stopped; rules and addresses stay for the next start",
		zap.String("hint", "sluice --cleanup removes them"))
	return nil
}

// leaveQueues leaves the choice on data path queue to the kernel, since the next process may start while this one
// drains.
func (d *daemon) leaveQueues() {
	ctx, cancel := context.WithTimeout(context.Background(), offloadTimeout)
	defer cancel()
	if err := d.agent.HandClients(ctx); err != nil {
		d.Log.Warn("clients with affinity may get other endpoints until the next start", zap.Error(err))
	}
	d.steering.queues.close()
}

// offload moves Services to the kernel's rules, which go on without this process, and waits until nothing is open, ctx
// has ended, or another process has taken over. Meanwhile it closes the sockets that no client needs any more, or
// accepts connections where the kernel cannot forward them.
func (d *daemon) offload(ctx context.Context) {
	mine, lost := context.WithCancel(context.Background()) // until another process has taken over
	d.background.Go(func() {
		select {
		case <-d.Upgrade.Done():
			lost()
		case <-mine.Done():
		}
	})
	defer d.background.Wait()
	defer lost()
	err := d.moveToKernel(mine)
	look, again := time.NewTicker(lookEvery), time.NewTicker(offloadRetry)
	defer look.Stop()
	defer again.Stop()
	for d.data.active() > 0 || err != nil {
		select {
		case <-ctx.Done():
			return
		case <-mine.Done():
			return
		case <-look.C:
		case <-again.C:
			if err != nil {
				err = d.moveToKernel(mine)
			}
		}
	}
}

// moveToKernel moves Services to the kernel's rules once. After an error it is worth another try.
func (d *daemon) moveToKernel(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, offloadTimeout)
	defer cancel()
	left, err := d.agent.Offload(ctx, node.Forwards())
	if err != nil {
		d.Log.Warn("cannot move Services to the kernel, still accepting connections", zap.Error(err))
		return err
	}
	if left > 0 {
		d.Log.Info("the kernel cannot forward all Services, still accepting connections",
			zap.Int("service_ports", left))
	} else {
		d.Log.Info("the kernel forwards new connections until the next start")
		d.awaitHandshakes(ctx)
		if err := d.agent.Withdraw(ctx); err != nil {
			return err // another process has taken over
		}
	}
	d.lock.Release() // the next may start while this one drains
	return nil
}

// awaitHandshakes waits for the clients that have been steered to a socket and have not completed their handshakes: it
// would reset them if it closed.
func (d *daemon) awaitHandshakes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		if n, err := node.HalfOpen(); n == 0 || err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}
