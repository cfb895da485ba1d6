package command

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/daemon"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/notify"
)

var (
	// errConfigChanged ends the program so that its supervisor starts it anew, as
	// kube-proxy does.
	errConfigChanged = errors.New("the file of --config has changed: start again for it to take effect")

	errSecondSignal = errors.New("stopped by a second signal; open connections were cut")
)

// serve runs the daemon until a signal, or until the file of --config comes to mean
// something else. It returns at once at a second signal, while the daemon still runs.
func serve(args []string, o daemon.Options) error {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	ended := make(chan error, 1)
	go func() { ended <- serveUntil(ctx, stop, args, o) }()
	for stopping := false; ; stopping = true {
		select {
		case err := <-ended:
			return err
		case s := <-signals:
			if stopping {
				return errSecondSignal
			}
			o.Log.Info("stopping; a second signal ends the process immediately", zap.Stringer("signal", s))
			stop(nil)
		}
	}
}

// serveUntil runs the daemon until ctx ends, and watches the file of --config meanwhile.
func serveUntil(ctx context.Context, stop context.CancelCauseFunc, args []string, o daemon.Options) (err error) {
	var watching sync.WaitGroup
	watching.Go(func() { watchConfig(ctx, stop, args, o) })
	run := func(ctx context.Context) error { return daemon.Run(ctx, o) }
	if o.Config.Process.WindowsService {
		err = underServiceManager(ctx, run)
	} else {
		err = run(ctx)
	}
	if err != nil {
		return err // watchConfig may be the one that has handed over
	}
	stop(nil)
	watching.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, errConfigChanged) {
		return cause
	}
	return nil
}

// watchConfig upgrades the program, or stops it, when the file of --config has come to mean
// something else, until ctx ends.
func watchConfig(ctx context.Context, stop context.CancelCauseFunc, args []string, o daemon.Options) {
	watcher := config.Watcher{Args: args, Last: o.Config,
		Changed: func(config.Config) (again bool) {
			if o.Config.Process.HandoverSocket != "" || notify.Managed() { // or whatever started us would lose us
				return o.Upgrade.Upgrade("the changed configuration") != nil // then the running one stays in effect
			}
			o.Log.Info("stopping: the configuration has changed", zap.String("file", o.Config.File))
			stop(errConfigChanged)
			return false
		},
		Invalid: func(err error) {
			o.Log.Error("the changed configuration is not applied, the last good one stays", zap.Error(err))
		},
		Blind: func(err error) {
			o.Log.Warn("the configuration is not watched, only read every 10 s", zap.Error(err))
		}}
	watcher.Run(ctx)
}
